/* One pass of a Llama-shaped model over a few tokens, on a processor. native.py builds and calls it.
 *
 * Such a pass is bound by reading the weights once, so everything else must cost next to nothing: one parallel region a
 * pass, weights fetched ahead by hand, sums in fp32. Each sum is taken in an order that depends on its own row alone, so
 * the logits of a token are the same bits whatever else is in the pass.
 *
 * Built for one dtype of the weights: fp32, or bf16 with -DBF16. Shapes: B rows, T tokens of a row, N = B * T, S slots of a
 * cache. Sizes that are summed over are multiples of 32 and a product has 16 outputs or more: native.py sees to it.
 */
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif
#include "vectors.h"
#if defined __AVX512BW__ || defined __AVX512BF16__ || defined __AMX_BF16__
#include <immintrin.h>
#endif

/* ---- what native.py hands over -------------------------------------------------------------------------------------- */

typedef struct {
    const weight *weight, *bias; /* (out, in); no bias: null */
    int64_t out;
    /* In the place of `weight`, where that is null, of a bf16 model: numbers of 16 levels, (out, in / 64, 32), the number of
     * input i in the low half of byte i and that of input 32 + i in the high half; which table a block of 64 has; and tables of
     * levels times a scale, for there are few different scales. */
    const uint8_t *codes;
    const uint16_t *table; /* (out, in / 64) */
    const weight *tables;  /* (tables, 16) */
} linear;

typedef struct {
    const float *norm, *query_norm, *key_norm, *mlp_norm; /* of queries and keys: null where the family has none */
    linear query, key, value, output, gate, up, down;
} layer;

typedef struct {
    int64_t tokens, layers, hidden, inner, heads, key_heads, width;
    float epsilon;
    const weight *embedding;
    const float *norm;
    linear head;
    const layer *layer;
} model;

typedef struct {
    int64_t rows, count, keep, capacity;
    const int64_t *ids, *first;  /* (B, T); (B): the slot of a row's first token */
    const float *cosine, *sine;  /* (S, head width); sines with the sign of "rotate half" */
    weight *const *caches;       /* a layer: (B, S, 2 * key heads, head width), keys before values */
    float *scratch;              /* scratch_floats() of them */
    float *logits;               /* (B, keep, head.out) */
    int threads;
} pass;

/* ---- weights of four bits ------------------------------------------------------------------------------------------- */

/* The 64 weights of block `number`. */
static inline void expand(const linear *l, int64_t number, weight *w) {
    const uint8_t *codes = l->codes + number * 32;
    const weight *level = l->tables + 16 * l->table[number];
#if defined BF16 && defined __AVX512BW__ /* what lies above the 16 levels is never asked for */
    __m512i table = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)level));
    __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)codes));
    _mm512_storeu_si512(w, _mm512_permutexvar_epi16(_mm512_and_si512(both, _mm512_set1_epi16(15)), table));
    _mm512_storeu_si512(w + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), table));
#else
    for (int i = 0; i < 32; i++) w[i] = level[codes[i] & 15], w[32 + i] = level[codes[i] >> 4];
#endif
}

/* ---- products ------------------------------------------------------------------------------------------------------- */
/* `block` multiplies OUTPUTS rows of weights, (outputs, in), with up to MOST inputs, which `put` laid down as it wants
 * them; out is (inputs, OUTPUTS). Weights are fetched ahead: by itself the processor stops at the end of a page. Where `w` is
 * null, which one build allows, it expands the codes of `l` from row `from` on. */

#if defined BF16 && defined __AMX_BF16__
/* By tiles of 16 outputs, 16 inputs and 32 summands: a pass over 16 tokens takes hardly longer than over one. A block of
 * inputs lies as (in / 2, INPUTS, 2). */
#include <sys/syscall.h>
#include <unistd.h>
#define INPUTS 16
#define MOST (2 * INPUTS) /* that a block takes */
#define EXPANDS 1 /* codes, by itself, of a pass that is one block */
#define OUTPUTS 16
#define AHEAD 128 /* summands; farther, what was fetched is gone again when it is needed */
#define FAR 4 /* blocks of codes */
const int64_t most_tokens = 320; /* above, the library's products are as fast */

int ready(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0; }

/* Inputs of a pass: fewer than a tile takes lie close together, and stay in the nearest cache. */
static inline int64_t columns(int64_t rows) { return rows < INPUTS ? rows : INPUTS; }

static void set_up(int64_t rows) {
    struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    for (int tile = 0; tile < 5; tile++) shape.bytes[tile] = 64, shape.rows[tile] = 16;
    shape.bytes[0] = shape.bytes[2] = 4 * columns(rows); /* sums, and inputs; tiles 3 and 4 are for more than one block */
    __asm__ volatile("ldtilecfg %0" ::"m"(shape)); /* gcc 12's own _tile_loadconfig says that it reads 8 bytes of it */
}
static void tear_down(void) { _tile_release(); }

static inline void put(weight *x, int64_t n, int64_t i, int64_t in, int64_t rows, vector value) {
    int64_t wide = columns(rows);
    uint32_t pairs[LANES / 2], *to = (uint32_t *)x + n / INPUTS * INPUTS * in / 2 + i / 2 * wide + n % INPUTS;
    narrow((weight *)pairs, value);
    for (int pair = 0; pair < LANES / 2; pair++) to[pair * wide] = pairs[pair];
}

typedef float sums[2][OUTPUTS][INPUTS];

/* Of two blocks of inputs at a time each tile of weights is loaded once. Of codes 64 summands are expanded at a time, while those
 * before are multiplied; they never leave the nearest cache. */
static inline __attribute__((always_inline)) void
tiles(
    const int pair, const int coded, const linear *l, int64_t from, const weight *w, const weight *x, int64_t in, int64_t wide,
    sums *sums) {
    weight near[2][OUTPUTS][64] __attribute__((aligned(64)));
    int64_t bytes = coded ? sizeof near[0][0] : 2 * in;
    __asm__ volatile("" ::: "memory"); /* nor does _tile_loadd say that it reads memory */
    _tile_zero(0);
    if (pair) _tile_zero(3);
    for (int64_t i = 0; i < in; i += 32) {
        if (coded && i == 0)
            for (int64_t o = 0; o < OUTPUTS; o++) expand(l, from * in / 64 + o * in / 64, near[0][o]);
        if (coded && i % 64 == 0) w = near[i / 64 % 2][0] - i;
        if (coded && i % 64 == 0 && i + 64 < in) {
            int64_t number = (from * in + i + 64) / 64, next = FAR + (i / 64 + FAR < in / 64 ? 0 : (OUTPUTS - 1) * in / 64);
            for (int64_t o = 0; o < OUTPUTS; o++, number += in / 64) {
                __builtin_prefetch(l->codes + (number + next) * 32);
                expand(l, number, near[(i / 64 + 1) % 2][o]);
            }
            __asm__ volatile("" ::: "memory");
        }
        const weight *next = w + i + AHEAD + (i + AHEAD < in ? 0 : (OUTPUTS - 1) * in);
        for (int o = 0; !coded && o < OUTPUTS; o++) __builtin_prefetch(next + o * in);
        _tile_loadd(1, w + i, bytes);
        _tile_loadd(2, x + i * wide, 4 * wide);
        _tile_dpbf16ps(0, 1, 2);
        if (pair) {
            _tile_loadd(4, x + (in + i) * INPUTS, 4 * INPUTS);
            _tile_dpbf16ps(3, 1, 4);
        }
    }
    _tile_stored(0, (*sums)[0], sizeof (*sums)[0][0]);
    if (pair) _tile_stored(3, (*sums)[1], sizeof (*sums)[1][0]);
}

static void
block(const linear *l, int64_t from, const weight *w, const weight *x, int64_t in, int64_t inputs, int64_t wide, float *out) {
    sums sums;
    if (w && inputs > INPUTS) tiles(1, 0, l, from, w, x, in, wide, &sums);
    else if (w) tiles(0, 0, l, from, w, x, in, wide, &sums);
    else if (inputs > INPUTS) tiles(1, 1, l, from, w, x, in, wide, &sums);
    else tiles(0, 1, l, from, w, x, in, wide, &sums);
    for (int64_t n = 0; n < inputs; n++)
        for (int o = 0; o < OUTPUTS; o++) out[n * OUTPUTS + o] = sums[n / INPUTS][o][n % INPUTS];
}
#else
/* By vectors. Inputs lie as (N, in). */
#define INPUTS 12
#define MOST INPUTS
#define EXPANDS 0
#define OUTPUTS 4
const int64_t most_tokens = 2 * INPUTS;

int ready(void) { return 1; }
static inline int64_t columns(int64_t rows) { return rows; }
static void set_up(int64_t rows) { (void)rows; }
static void tear_down(void) {}

static inline void put(weight *x, int64_t n, int64_t i, int64_t in, int64_t rows, vector value) {
    (void)rows;
    narrow(x + n * in + i, value);
}

#if defined BF16 && defined __AVX512BF16__
#define STEP (2 * LANES)
static inline vector accumulate(vector sum, const weight *w, const weight *x) {
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_loadu_si512(x));
}
#else
#define STEP LANES
static inline vector accumulate(vector sum, const weight *w, const weight *x) { return sum + widen(w) * widen(x); }
#endif

/* Both counts are constants where this is inlined, and small enough for the sums to stay in registers. */
static inline __attribute__((always_inline)) void
vectors(const int outputs, const int inputs, const weight *w, const weight *x, int64_t in, float *out) {
    vector sums[OUTPUTS][INPUTS] = {};
    for (int64_t i = 0; i < in; i += STEP) {
        for (int o = 0; o < outputs; o++) __builtin_prefetch(w + (OUTPUTS + o) * in + i);
        for (int n = 0; n < inputs; n++)
            for (int o = 0; o < outputs; o++) sums[o][n] = accumulate(sums[o][n], w + o * in + i, x + n * in + i);
    }
    for (int n = 0; n < inputs; n++)
        for (int o = 0; o < outputs; o++) out[n * OUTPUTS + o] = total(sums[o][n]);
}

#define FEW(inputs) case inputs: vectors(4, inputs, w, x, in, out); break;
#define MANY(inputs) case inputs: vectors(2, inputs, w, x, in, out); vectors(2, inputs, w + 2 * in, x, in, out + 2); break;
static void
block(const linear *l, int64_t from, const weight *w, const weight *x, int64_t in, int64_t inputs, int64_t wide, float *out) {
    (void)l, (void)from, (void)wide;
    switch (inputs) {
        FEW(1) FEW(2) FEW(3) FEW(4) FEW(5) FEW(6) MANY(7) MANY(8) MANY(9) MANY(10) MANY(11) MANY(12)
    }
}
#endif


/* y[n][o] = (or += where `add`) x[n] . w[o] + bias[o], this thread's share of the outputs; y has `stride` columns, and `room` is
 * for OUTPUTS rows of weights. */
static void
product(const linear *l, const weight *x, int64_t rows, int64_t in, float *y, int64_t stride, int add, weight *room) {
    float out[MOST * OUTPUTS];
#pragma omp for schedule(static) nowait
    for (int64_t number = 0; number < (l->out + OUTPUTS - 1) / OUTPUTS; number++) {
        int64_t own = number * OUTPUTS, from = own + OUTPUTS <= l->out ? own : l->out - OUTPUTS; /* the last may overlap */
        const weight *w = l->weight ? l->weight + from * in : EXPANDS && rows <= MOST ? 0 : room;
        for (int64_t n = 0; w == room && n < OUTPUTS * in / 64; n++) expand(l, from * in / 64 + n, room + 64 * n);
        for (int64_t row = 0; row < rows; row += MOST) {
            int64_t inputs = rows - row < MOST ? rows - row : MOST;
            block(l, from, w, x + row * in, in, inputs, columns(rows), out);
            for (int64_t n = 0; n < inputs; n++) {
                float *to = y + (row + n) * stride;
                for (int64_t o = own; o < from + OUTPUTS; o++)
                    to[o] = out[n * OUTPUTS + o - from] + (l->bias ? widen_one(l->bias[o]) : 0.0f) + (add ? to[o] : 0.0f);
            }
        }
    }
}

/* ---- what is between two products ----------------------------------------------------------------------------------- */

static float scale_of(const float *x, int64_t size, float epsilon) {
    vector squares = {};
    for (int64_t i = 0; i < size; i += LANES) squares += load(x + i) * load(x + i);
    return 1.0f / sqrtf(total(squares) / size + epsilon);
}

/* Inputs are laid down a block of tokens at a time, PART summands of each: tokens of a block share cache lines, which two threads
 * must not write to at once. */
#define PART 32
static inline int64_t blocks_of(int64_t rows) { return (rows + INPUTS - 1) / INPUTS; }
static inline int64_t end_of(int64_t block, int64_t rows) { return rows < (block + 1) * INPUTS ? rows : (block + 1) * INPUTS; }

/* RMSNorm of the last `keep` tokens of each row, laid down as inputs. */
static void normalise(const model *m, const pass *p, const float *x, const float *weights, int64_t keep, weight *y) {
    int64_t size = m->hidden, rows = p->rows * keep, parts = size / PART, known = -1;
    const float *from[INPUTS];
    float scales[INPUTS];
#pragma omp for schedule(static)
    for (int64_t job = 0; job < blocks_of(rows) * parts; job++) {
        int64_t block = job / parts, begin = block * INPUTS, part = job % parts * PART;
        for (int64_t n = begin; block != known && n < end_of(block, rows); n++) {
            from[n - begin] = x + (n / keep * p->count + p->count - keep + n % keep) * size;
            scales[n - begin] = scale_of(from[n - begin], size, m->epsilon);
        }
        known = block;
        for (int64_t n = begin; n < end_of(block, rows); n++)
            for (int64_t i = part; i < part + PART; i += LANES)
                put(y, n, i, size, rows, load(from[n - begin] + i) * scales[n - begin] * load(weights + i));
    }
}

/* The first `size` columns of `stride`, laid down as inputs. */
static void lay(const float *x, int64_t rows, int64_t size, int64_t stride, weight *y) {
#pragma omp for schedule(static)
    for (int64_t job = 0; job < blocks_of(rows) * size / PART; job++) {
        int64_t block = job / (size / PART), part = job % (size / PART) * PART;
        for (int64_t n = block * INPUTS; n < end_of(block, rows); n++)
            for (int64_t i = part; i < part + PART; i += LANES) put(y, n, i, size, rows, load(x + n * stride + i));
    }
}

/* Turn queries in place, and keys by their slot; keys and values go into the cache. */
static void turn(const model *m, const layer *l, const pass *p, float *qkv, weight *cache) {
    int64_t heads = m->heads + 2 * m->key_heads, width = m->width, half = width / 2;
#pragma omp for schedule(static)
    for (int64_t job = 0; job < p->rows * p->count * heads; job++) {
        int64_t n = job / heads, head = job % heads, row = n / p->count, slot = p->first[row] + n % p->count;
        int is_query = head < m->heads, is_value = head >= m->heads + m->key_heads;
        float *x = qkv + job * width;
        const float *norm = is_query ? l->query_norm : is_value ? 0 : l->key_norm;
        const float *cosine = p->cosine + slot * width, *sine = p->sine + slot * width;
        float scale = norm ? scale_of(x, width, m->epsilon) : 1.0f;
        for (int64_t d = 0; norm && d < width; d++) x[d] *= scale * norm[d];
        for (int64_t d = 0; !is_value && d < half; d++) {
            float low = x[d], high = x[d + half];
            x[d] = low * cosine[d] + high * sine[d];
            x[d + half] = high * cosine[d + half] + low * sine[d + half];
        }
        weight *kept = cache + ((row * p->capacity + slot) * 2 * m->key_heads + head - m->heads) * width;
        for (int64_t d = 0; !is_query && d < width; d += LANES) narrow(kept + d, load(x + d));
    }
}

/* Of a cache, that any row may see: whole vectors of them. */
static int64_t visible_slots(const pass *p) {
    int64_t most = 0;
    for (int64_t row = 0; row < p->rows; row++) most = p->first[row] > most ? p->first[row] : most;
    return (most + p->count + LANES - 1) / LANES * LANES;
}

/* The totals of LANES vectors, one a lane: what `total` gives of each, by halves. */
#ifdef __clang__
#define MERGED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MERGED(a, b, ...) __builtin_shuffle(a, b, (whole){__VA_ARGS__})
#endif
static inline vector totals(const vector *parts) {
    vector by8[8], by4[4], by2[2];
    for (int n = 0; n < 8; n++)
        by8[n] = MERGED(parts[n], parts[n + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                 MERGED(parts[n], parts[n + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int n = 0; n < 4; n++)
        by4[n] = MERGED(by8[n], by8[n + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
                 MERGED(by8[n], by8[n + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int n = 0; n < 2; n++)
        by2[n] = MERGED(by4[n], by4[n + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                 MERGED(by4[n], by4[n + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    return MERGED(by2[0], by2[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           MERGED(by2[0], by2[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}

/* Sums of values by the shares of `count` queries, SPAN vectors of each, in the order of slots. */
#define TOGETHER 4
#define SPAN 4
static inline __attribute__((always_inline)) void mix(
    const int count, const float *shares, int64_t room, const weight *values, int64_t stride, int64_t seen, const int64_t *at,
    vector (*mixed)[SPAN]) {
    vector sums[TOGETHER][SPAN] = {};
    for (int64_t slot = 0; slot < seen; slot++) {
        const weight *value = values + slot * stride;
        vector own[SPAN] = {widen(value + at[0]), widen(value + at[1]), widen(value + at[2]), widen(value + at[3])};
        for (int k = 0; k < count; k++)
            for (int v = 0; v < SPAN; v++) sums[k][v] += own[v] * shares[k * room + slot];
    }
    memcpy(mixed, sums, sizeof sums);
}

/* In the place of each query its mix of the values, for QUERIES of one key head at a time; `scores` has room for (QUERIES, S), S
 * a multiple of LANES. Slots a query does not see yet have no share, and change no bit of its sums. */
#define QUERIES 16
static void attend(const model *m, const pass *p, float *qkv, const weight *cache, float *scores) {
    int64_t group = m->heads / m->key_heads, width = m->width, heads = m->heads + 2 * m->key_heads;
    int64_t queries = p->count * group, blocks = (queries + QUERIES - 1) / QUERIES, stride = 2 * m->key_heads * width;
    int64_t room = visible_slots(p);
    float scale = 1.0f / sqrtf(width);
#pragma omp for schedule(static)
    for (int64_t job = 0; job < p->rows * m->key_heads * blocks; job++) {
        int64_t row = job / (m->key_heads * blocks), key = job / blocks % m->key_heads, begin = job % blocks * QUERIES;
        int64_t some = queries - begin < QUERIES ? queries - begin : QUERIES, first = p->first[row];
        int64_t seen = first + (begin + some - 1) / group + 1;
        const weight *keys = cache + row * p->capacity * stride + key * width, *values = keys + m->key_heads * width;
        float asked[QUERIES][width], kept[LANES][width], sums[QUERIES];
        vector highest[QUERIES];
        for (int64_t q = 0; q < some; q++) {
            int64_t n = row * p->count + (begin + q) / group;
            const float *from = qkv + (n * heads + key * group + (begin + q) % group) * width;
            for (int64_t d = 0; d < width; d += LANES) store(asked[q] + d, load(from + d) * scale);
            highest[q] = all(-INFINITY);
        }
        for (int64_t slot = 0; slot < seen; slot += LANES) {
            for (int64_t s = 0; s < LANES; s++) /* beyond the end: the last again, seen by nobody */
                for (int64_t d = 0; d < width; d += LANES)
                    store(kept[s] + d, widen(keys + (slot + s < seen ? slot + s : seen - 1) * stride + d));
            for (int64_t q = 0; q < some; q++) {
                vector parts[LANES] = {};
                for (int64_t d = 0; d < width; d += LANES) {
                    vector own = load(asked[q] + d);
                    for (int s = 0; s < LANES; s++) parts[s] += own * load(kept[s] + d);
                }
                whole ahead = (whole){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} +
                              (int32_t)(slot - first - (begin + q) / group) > 0;
                vector score = either(ahead, all(-INFINITY), totals(parts));
                highest[q] = either(score > highest[q], score, highest[q]);
                store(scores + q * room + slot, score);
            }
        }
        for (int64_t q = 0; q < some; q++) {
            float most = -INFINITY, highs[LANES];
            vector sum = {};
            store(highs, highest[q]);
            for (int lane = 0; lane < LANES; lane++) most = highs[lane] > most ? highs[lane] : most;
            for (int64_t slot = 0; slot < seen; slot += LANES) {
                vector score = load(scores + q * room + slot);
                vector share = either(score == -INFINITY, (vector){}, exponential(score - most));
                store(scores + q * room + slot, share);
                sum += share;
            }
            sums[q] = total(sum);
        }
        for (int64_t q = 0; q < some; q += TOGETHER)
            for (int64_t d = 0; d < width; d += SPAN * LANES) { /* beyond the width: the last vector again */
                int64_t few = some - q < TOGETHER ? some - q : TOGETHER, at[SPAN];
                for (int v = 0; v < SPAN; v++) at[v] = d + v * LANES < width ? d + v * LANES : width - LANES;
                vector mixed[TOGETHER][SPAN] = {};
#define MIX(count) case count: mix(count, scores + q * room, room, values, stride, seen, at, mixed); break;
                switch (few) { MIX(1) MIX(2) MIX(3) MIX(4) }
                for (int64_t k = 0; k < few; k++) {
                    int64_t query = begin + q + k, n = row * p->count + query / group;
                    float *to = qkv + (n * heads + key * group + query % group) * width;
                    for (int v = 0; v < SPAN; v++) store(to + at[v], mixed[k][v] / sums[q + k]);
                }
            }
    }
}

/* silu(gate) * up, laid down as inputs. */
static void activate(const float *gate, const float *up, int64_t rows, int64_t size, weight *y) {
#pragma omp for schedule(static)
    for (int64_t job = 0; job < blocks_of(rows) * size / PART; job++) {
        int64_t block = job / (size / PART), part = job % (size / PART) * PART;
        for (int64_t n = block * INPUTS; n < end_of(block, rows); n++)
            for (int64_t i = part; i < part + PART; i += LANES) {
                vector x = load(gate + n * size + i);
                put(y, n, i, size, rows, x / (1.0f + exponential(-x)) * load(up + n * size + i));
            }
    }
}

/* ---- the pass ------------------------------------------------------------------------------------------------------- */

static int64_t widest(const model *m) {
    int64_t query = m->heads * m->width, most = m->hidden > m->inner ? m->hidden : m->inner;
    return query > most ? query : most;
}

int64_t scratch_floats(const model *m, const pass *p) {
    int64_t size = p->rows * p->count, heads = (m->heads + 2 * m->key_heads) * m->width;
    int64_t inputs = blocks_of(size) * INPUTS * (m->hidden + m->heads * m->width + m->inner);
    int64_t each = visible_slots(p) * QUERIES + OUTPUTS * widest(m); /* of a thread: scores, and weights made of codes */
    return size * (m->hidden + heads + 2 * m->inner) + p->threads * each + inputs;
}

/* 0 if all went well, 1 for a token that the model does not have, 2 for a slot that the cache does not have. */
int forward(const model *m, const pass *p) {
    int64_t size = p->rows * p->count, hidden = m->hidden, inner = m->inner, visible = visible_slots(p);
    int64_t query = m->heads * m->width, key = m->key_heads * m->width, stride = query + 2 * key;
    for (int64_t n = 0; n < size; n++)
        if (p->ids[n] < 0 || p->ids[n] >= m->tokens) return 1;
    for (int64_t row = 0; row < p->rows; row++)
        if (p->first[row] < 0 || p->first[row] + p->count > p->capacity) return 2;
    float *x = p->scratch, *qkv = x + size * hidden, *gate = qkv + size * stride, *up = gate + size * inner;
    float *scores = up + size * inner;
    float *rooms = scores + p->threads * visible * QUERIES;
    weight *y = (weight *)(rooms + p->threads * OUTPUTS * widest(m)), *mixed = y + blocks_of(size) * INPUTS * hidden;
    weight *act = mixed + blocks_of(size) * INPUTS * query;
#pragma omp parallel num_threads(p->threads)
    {
        weight *room = (weight *)(rooms + omp_get_thread_num() * OUTPUTS * widest(m));
        set_up(size);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < size; n++)
            for (int64_t i = 0; i < hidden; i += LANES) store(x + n * hidden + i, widen(m->embedding + p->ids[n] * hidden + i));
        for (int64_t number = 0; number < m->layers; number++) {
            const layer *l = m->layer + number;
            normalise(m, p, x, l->norm, p->count, y);
            product(&l->query, y, size, hidden, qkv, stride, 0, room);
            product(&l->key, y, size, hidden, qkv + query, stride, 0, room);
            product(&l->value, y, size, hidden, qkv + query + key, stride, 0, room);
#pragma omp barrier
            turn(m, l, p, qkv, p->caches[number]);
            attend(m, p, qkv, p->caches[number], scores + omp_get_thread_num() * visible * QUERIES);
            lay(qkv, size, query, stride, mixed);
            product(&l->output, mixed, size, query, x, hidden, 1, room);
#pragma omp barrier
            normalise(m, p, x, l->mlp_norm, p->count, y);
            product(&l->gate, y, size, hidden, gate, inner, 0, room);
            product(&l->up, y, size, hidden, up, inner, 0, room);
#pragma omp barrier
            activate(gate, up, size, inner, act);
            product(&l->down, act, size, inner, x, hidden, 1, room);
#pragma omp barrier
        }
        normalise(m, p, x, m->norm, p->keep, y);
        set_up(p->rows * p->keep);
        product(&m->head, y, p->rows * p->keep, hidden, p->logits, m->head.out, 0, room);
        tear_down();
    }
    return 0;
}
