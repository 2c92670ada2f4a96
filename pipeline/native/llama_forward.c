/* A forward pass of a Llama-shaped model over a few tokens, on a CPU. pipeline/speculation/compiled_forward.py calls it.
 *
 * Such a pass is bound by reading the weights once. So there is one parallel region a pass, weights are prefetched
 * explicitly, and sums are fp32. The order of a sum depends on its own row alone: the logits of a token are the same bits
 * whatever else is in the batch.
 *
 * Built for one dtype of the weights: fp32, or bf16 with -DBF16. Shapes: B rows of the batch, T tokens of a row, N = B * T
 * tokens, S slots of a KV cache, D numbers of a head. Sizes that are summed over are multiples of 32, a head is a multiple
 * of 16, and a linear layer has at least 16 outputs: the caller checks this.
 */
#include "simd.h"

/* ---- arguments, declared once more in compiled_forward.py ------------------------------------------------------------- */

typedef struct {
    const weight *weight, *bias; /* (outputs, inputs); bias may be null */
    int64_t outputs;
    /* Used where `weight` is null: an nf4 layer of a bf16 model. A block is 64 inputs of one output. Byte i of a block
     * holds the code of input i in its low half and of input 32 + i in its high half. A table holds the 16 levels times a
     * scale; blocks share tables. */
    const uint8_t *nf4_codes;        /* (outputs, inputs / 64, 32) */
    const uint16_t *nf4_table_index; /* (outputs, inputs / 64) */
    const weight *nf4_tables;        /* (tables, 16) */
} linear;

typedef struct {
    const float *attention_norm, *query_norm, *key_norm, *mlp_norm; /* query_norm and key_norm may be null */
    linear query, key, value, output, gate, up, down;
} layer;

typedef struct {
    int64_t vocab_size, layer_count, hidden_size, intermediate_size, heads, key_value_heads, head_dim;
    float norm_epsilon;
    const weight *embedding; /* (vocab_size, hidden_size) */
    const float *final_norm;
    linear lm_head; /* may have fewer outputs than vocab_size */
    const layer *layers;
} model;

typedef struct {
    int64_t batch, tokens, kept, cache_slots; /* B; T; the last tokens of a row that get logits; S */
    const int64_t *ids, *first_slot;          /* (B, T); (B): the slot of a row's first token */
    const float *cosine, *sine;               /* (S, D); the sine has the sign of "rotate half" */
    weight *const *caches;                    /* per layer: (B, S, 2 * key_value_heads, D), keys before values */
    float *scratch;                           /* llama_scratch_floats() of them */
    float *logits;                            /* (B, kept, lm_head.outputs) */
    int32_t threads;
} forward_args;

const field_layout linear_layout[] = {
    STRUCT(linear),
    FIELD(linear, weight),
    FIELD(linear, bias),
    FIELD(linear, outputs),
    FIELD(linear, nf4_codes),
    FIELD(linear, nf4_table_index),
    FIELD(linear, nf4_tables),
    END_OF_LAYOUT,
};
const field_layout layer_layout[] = {
    STRUCT(layer),
    FIELD(layer, attention_norm),
    FIELD(layer, query_norm),
    FIELD(layer, key_norm),
    FIELD(layer, mlp_norm),
    FIELD(layer, query),
    FIELD(layer, key),
    FIELD(layer, value),
    FIELD(layer, output),
    FIELD(layer, gate),
    FIELD(layer, up),
    FIELD(layer, down),
    END_OF_LAYOUT,
};
const field_layout model_layout[] = {
    STRUCT(model),
    FIELD(model, vocab_size),
    FIELD(model, layer_count),
    FIELD(model, hidden_size),
    FIELD(model, intermediate_size),
    FIELD(model, heads),
    FIELD(model, key_value_heads),
    FIELD(model, head_dim),
    FIELD(model, norm_epsilon),
    FIELD(model, embedding),
    FIELD(model, final_norm),
    FIELD(model, lm_head),
    FIELD(model, layers),
    END_OF_LAYOUT,
};
const field_layout forward_args_layout[] = {
    STRUCT(forward_args),
    FIELD(forward_args, batch),
    FIELD(forward_args, tokens),
    FIELD(forward_args, kept),
    FIELD(forward_args, cache_slots),
    FIELD(forward_args, ids),
    FIELD(forward_args, first_slot),
    FIELD(forward_args, cosine),
    FIELD(forward_args, sine),
    FIELD(forward_args, caches),
    FIELD(forward_args, scratch),
    FIELD(forward_args, logits),
    FIELD(forward_args, threads),
    END_OF_LAYOUT,
};
const char *const llama_instruction_sets = VECTOR_UNITS BF16_UNITS;

/* ---- nf4 weights ------------------------------------------------------------------------------------------------------ */

/* The 64 weights of block `number`. */
static inline void dequantize_nf4_block(const linear *l, int64_t number, weight *to) {
    const uint8_t *codes = l->nf4_codes + number * 32;
    const weight *level = l->nf4_tables + 16 * l->nf4_table_index[number];
#if defined BF16 && defined __AVX512BW__ /* codes are below 16: the upper half of the table register is never selected */
    __m512i table = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)level));
    __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)codes));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_and_si512(both, _mm512_set1_epi16(15)), table));
    _mm512_storeu_si512(to + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), table));
#else
    for (int i = 0; i < 32; i++) to[i] = level[codes[i] & 15], to[32 + i] = level[codes[i] >> 4];
#endif
}

/* ---- matrix products -------------------------------------------------------------------------------------------------- */
/* `matmul_block` multiplies OUTPUTS rows of weights with up to MAX_BLOCK packed inputs; its result is (inputs, OUTPUTS).
 * `pack_input` says how inputs are packed. Weights are prefetched because the hardware prefetcher stops at the end of a
 * page. */

#if defined BF16 && defined __AMX_BF16__
/* With tiles of 16 outputs, 16 inputs and 32 summands. A pass over 16 tokens takes hardly longer than one over a single
 * token. A block of inputs is packed as (in / 2, INPUTS, 2). */
#include <sys/syscall.h>
#include <unistd.h>
#define INPUTS 16
#define MAX_BLOCK (2 * INPUTS)
#define DEQUANTIZES_TILES 1 /* matmul_block takes nf4 codes itself where the whole pass is one block */
#define OUTPUTS 16
#define PREFETCH_SUMMANDS 128 /* farther ahead, they are evicted again before they are used */
#define PREFETCH_NF4_BLOCKS 4
const int64_t llama_max_tokens = 320; /* above this PyTorch is as fast */

/* Whether the kernel lets this process use the tile registers. */
int llama_features_granted(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0; }

/* How many columns a packed block has: fewer than INPUTS for a small pass, so that it stays in the L1 cache. */
static inline int64_t packed_columns(int64_t inputs) { return inputs < INPUTS ? inputs : INPUTS; }

static void configure_tiles(int64_t inputs) {
    struct { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    for (int tile = 0; tile < 5; tile++) shape.bytes[tile] = 64, shape.rows[tile] = 16;
    shape.bytes[0] = shape.bytes[2] = 4 * packed_columns(inputs); /* sums, and inputs; tiles 3 and 4 are for a second block */
    __asm__ volatile("ldtilecfg %0" ::"m"(shape)); /* _tile_loadconfig of gcc 12 declares that it reads only 8 bytes */
}
static void release_tiles(void) { _tile_release(); }

typedef weight packed_input;

/* Packs elements i .. i + LANES of input n. */
static inline void pack_input(packed_input *packed, int64_t n, int64_t i, int64_t in, int64_t inputs, vector value) {
    int64_t columns = packed_columns(inputs);
    uint32_t pairs[LANES / 2], *to = (uint32_t *)packed + n / INPUTS * INPUTS * in / 2 + i / 2 * columns + n % INPUTS;
    store_weights((weight *)pairs, value);
    for (int pair = 0; pair < LANES / 2; pair++) to[pair * columns] = pairs[pair];
}

typedef float tile_sums[2][OUTPUTS][INPUTS];

/* With `two_blocks` of inputs each tile of weights is loaded once for both. With `is_nf4` 64 summands are dequantized at a
 * time, while the 64 before them are multiplied; they never leave the L1 cache. */
ALWAYS_INLINE void multiply_tiles(
    const int two_blocks, const int is_nf4, const linear *l, int64_t from, const weight *w, const packed_input *x, int64_t in,
    int64_t columns, tile_sums *sums) {
    weight near[2][OUTPUTS][64] __attribute__((aligned(64)));
    int64_t bytes = is_nf4 ? (int64_t)sizeof near[0][0] : 2 * in;
    __asm__ volatile("" ::: "memory"); /* _tile_loadd does not declare that it reads memory */
    _tile_zero(0);
    if (two_blocks) _tile_zero(3);
    for (int64_t i = 0; i < in; i += 32) {
        if (is_nf4 && i == 0)
            for (int64_t o = 0; o < OUTPUTS; o++) dequantize_nf4_block(l, from * in / 64 + o * in / 64, near[0][o]);
        if (is_nf4 && i % 64 == 0) w = near[i / 64 % 2][0] - i;
        if (is_nf4 && i % 64 == 0 && i + 64 < in) {
            int64_t number = (from * in + i + 64) / 64;
            int64_t ahead = PREFETCH_NF4_BLOCKS + (i / 64 + PREFETCH_NF4_BLOCKS < in / 64 ? 0 : (OUTPUTS - 1) * in / 64);
            for (int64_t o = 0; o < OUTPUTS; o++, number += in / 64) {
                __builtin_prefetch(l->nf4_codes + (number + ahead) * 32);
                dequantize_nf4_block(l, number, near[(i / 64 + 1) % 2][o]);
            }
            __asm__ volatile("" ::: "memory");
        }
        const weight *next = w + i + PREFETCH_SUMMANDS + (i + PREFETCH_SUMMANDS < in ? 0 : (OUTPUTS - 1) * in);
        for (int o = 0; !is_nf4 && o < OUTPUTS; o++) __builtin_prefetch(next + o * in);
        _tile_loadd(1, w + i, bytes);
        _tile_loadd(2, x + i * columns, 4 * columns);
        _tile_dpbf16ps(0, 1, 2);
        if (two_blocks) {
            _tile_loadd(4, x + (in + i) * INPUTS, 4 * INPUTS);
            _tile_dpbf16ps(3, 1, 4);
        }
    }
    _tile_stored(0, (*sums)[0], sizeof (*sums)[0][0]);
    if (two_blocks) _tile_stored(3, (*sums)[1], sizeof (*sums)[1][0]);
}

/* Where `w` is null, the codes of `l` are used from output `from` on. */
static void matmul_block(
    const linear *l, int64_t from, const weight *w, const packed_input *x, int64_t in, int64_t inputs, int64_t columns, float *out) {
    tile_sums sums;
    if (w && inputs > INPUTS) multiply_tiles(1, 0, l, from, w, x, in, columns, &sums);
    else if (w) multiply_tiles(0, 0, l, from, w, x, in, columns, &sums);
    else if (inputs > INPUTS) multiply_tiles(1, 1, l, from, w, x, in, columns, &sums);
    else multiply_tiles(0, 1, l, from, w, x, in, columns, &sums);
    for (int64_t n = 0; n < inputs; n++)
        for (int o = 0; o < OUTPUTS; o++) out[n * OUTPUTS + o] = sums[n / INPUTS][o][n % INPUTS];
}
#else
/* With vectors. Inputs are packed as (N, in). A sum is one vector, whose lanes are added at the end; LANES outputs at a time,
 * by shuffles: one by one, this takes longer than the products of a small model. */
#define DEQUANTIZES_TILES 0
#if LANES < 16 && defined BF16
#define INPUTS 4 /* with more, gcc 12 runs out of registers */
#else
#define INPUTS 6
#endif
#define MAX_BLOCK INPUTS
/* PyTorch takes 1.1 times as long at 128 tokens on a Zen 3, in bf16 6 times; on a Zen 4 1.2 to 1.6 and 1.04 to 1.5 times. */
#if LANES == 16
#define OUTPUTS 16
const int64_t llama_max_tokens = 128;
#else
#define OUTPUTS 8
const int64_t llama_max_tokens = sizeof(weight) == 4 ? 128 : 320;
#endif
#define LINE ((int)(64 / sizeof(weight))) /* weights in a cache line */

int llama_features_granted(void) { return 1; }
static inline int64_t packed_columns(int64_t inputs) { return inputs; }
static void configure_tiles(int64_t inputs) { (void)inputs; }
static void release_tiles(void) {}

/* Keeps `value` in a register: gcc would fold its load into each operation that uses it, and then loads are the bound. */
#if defined __x86_64__ && (defined __AVX512F__ || LANES < 16)
#define HOLD(value) __asm__("" : "+v"(value))
#else
#define HOLD(value) (void)(value)
#endif

/* One load takes STEP weights, which are multiplied in PARTS parts. */
#define STEP ((int)(4 * LANES / sizeof(weight)))
#if defined BF16 && defined __AVX512BF16__
#define PARTS 1
typedef weight packed_input;
typedef __m512bh operand;
static inline operand load_weight_operand(const weight *from, int part) {
    (void)part;
    return (operand)_mm512_loadu_si512(from);
}
static inline operand load_input_operand(const packed_input *from, int part) { return load_weight_operand(from, part); }
static inline vector multiply_add(vector sum, operand a, operand b) { return (vector)_mm512_dpbf16_ps((__m512)sum, a, b); }
#else
/* bf16 weights are widened in one operation: those with even numbers first, then those with odd ones. Inputs are packed in
 * this order, as fp32. */
#define PARTS ((int)(4 / sizeof(weight)))
typedef float packed_input;
typedef vector operand;
static inline operand load_weight_operand(const weight *from, int part) {
    uint_vector raw = *(const unaligned_uint_vector *)from;
    return (operand)(PARTS == 1 ? raw : part == 0 ? raw << 16 : raw & 0xffff0000);
}
static inline operand load_input_operand(const packed_input *from, int part) { return load(from + part * LANES); }
static inline vector multiply_add(vector sum, operand a, operand b) { return sum + a * b; }
#endif

/* Packs elements i .. i + LANES of input n. */
static inline void pack_input(packed_input *packed, int64_t n, int64_t i, int64_t in, int64_t inputs, vector value) {
    (void)inputs;
    packed_input *to = packed + n * in + i;
#if defined BF16 && defined __AVX512BF16__
    store_weights(to, value);
#elif defined BF16
    to -= i % STEP / 2; /* the first or the second half of the even numbers; the odd ones are LANES further */
    for (int pair = 0; pair < LANES / 2; pair++) to[pair] = value[2 * pair], to[LANES + pair] = value[2 * pair + 1];
#else
    store(to, value);
#endif
}

typedef vector partial_sums[INPUTS][OUTPUTS];

/* The sums of `outputs` rows of weights, before their lanes are added. Both counts are constants where this is inlined, and
 * small enough for the sums, and one operand for each of the smaller count, to stay in registers. */
ALWAYS_INLINE void multiply_vectors(
    const int outputs, const int inputs, const weight *w, const packed_input *x, int64_t in, partial_sums parts, int first) {
    vector sums[OUTPUTS][INPUTS] = {};
    for (int64_t line = 0; line < in; line += LINE) {
        for (int o = 0; o < outputs; o++) __builtin_prefetch(w + (outputs + o) * in + line);
        for (int64_t step = 0; step < LINE / STEP * PARTS; step++) {
            int64_t i = line + step / PARTS * STEP;
            int part = step % PARTS;
            operand held[OUTPUTS];
            if (inputs <= outputs) {
                for (int n = 0; n < inputs; n++) held[n] = load_input_operand(x + n * in + i, part);
                for (int n = 0; n < inputs; n++) HOLD(held[n]);
                for (int o = 0; o < outputs; o++) {
                    operand own = load_weight_operand(w + o * in + i, part);
                    if (inputs > 1) HOLD(own);
                    for (int n = 0; n < inputs; n++) sums[o][n] = multiply_add(sums[o][n], own, held[n]);
                }
            } else {
                for (int o = 0; o < outputs; o++) held[o] = load_weight_operand(w + o * in + i, part);
                for (int o = 0; o < outputs; o++) HOLD(held[o]);
                for (int n = 0; n < inputs; n++) {
                    operand own = load_input_operand(x + n * in + i, part);
                    if (outputs > 1) HOLD(own);
                    for (int o = 0; o < outputs; o++) sums[o][n] = multiply_add(sums[o][n], held[o], own);
                }
            }
        }
    }
    for (int n = 0; n < inputs; n++)
        for (int o = 0; o < outputs; o++) parts[n][first + o] = sums[o][n];
}

/* 16 sums for 16 registers and 24 for 32 hide the latency of multiply_add. */
#define BY_OUTPUTS(inputs, outputs) \
    case inputs: \
        for (int o = 0; o < OUTPUTS; o += outputs) multiply_vectors(outputs, inputs, w + o * in, x, in, parts, o); \
        break;
static void matmul_block(
    const linear *l, int64_t from, const weight *w, const packed_input *x, int64_t in, int64_t inputs, int64_t columns,
    float *out) {
    (void)l, (void)from, (void)columns;
    partial_sums parts;
    switch (inputs) {
#if LANES == 16
        BY_OUTPUTS(1, 16) BY_OUTPUTS(2, 8) BY_OUTPUTS(3, 8) BY_OUTPUTS(4, 4)
#else
        BY_OUTPUTS(1, 8) BY_OUTPUTS(2, 4) BY_OUTPUTS(3, 2) BY_OUTPUTS(4, 2)
#endif
#if INPUTS == 6
        BY_OUTPUTS(5, OUTPUTS / 4) BY_OUTPUTS(6, OUTPUTS / 4)
#endif
    }
    for (int64_t n = 0; n < inputs; n++)
        for (int o = 0; o < OUTPUTS; o += LANES) store(out + n * OUTPUTS + o, sums_of_lanes(parts[n] + o));
}
#endif

/* The weights of OUTPUTS outputs from `from` on. Those of an nf4 layer are dequantized into `room`; null where matmul_block
 * takes codes. */
static const weight *weights_of(const linear *l, int64_t from, int64_t in, int64_t inputs, weight *room) {
    if (l->weight) return l->weight + from * in;
    if (DEQUANTIZES_TILES && inputs <= MAX_BLOCK) return 0;
    for (int64_t n = 0; n < OUTPUTS * in / 64; n++) dequantize_nf4_block(l, from * in / 64 + n, room + 64 * n);
    return room;
}

/* y[n][o] = x[n] . w[o] + bias[o], added to y[n][o] where `add`. Each thread computes its share of the outputs. `x` is
 * packed, y has `stride` columns, and `room` has place for OUTPUTS rows of weights. */
static void apply_linear(
    const linear *l, const packed_input *x, int64_t inputs, int64_t in, float *y, int64_t stride, int add, weight *room) {
    float out[MAX_BLOCK * OUTPUTS];
#pragma omp for schedule(static) nowait
    for (int64_t number = 0; number < (l->outputs + OUTPUTS - 1) / OUTPUTS; number++) {
        int64_t own = number * OUTPUTS;
        int64_t from = own + OUTPUTS <= l->outputs ? own : l->outputs - OUTPUTS; /* the last may overlap */
        const weight *w = weights_of(l, from, in, inputs, room);
        for (int64_t begin = 0; begin < inputs; begin += MAX_BLOCK) {
            int64_t count = inputs - begin < MAX_BLOCK ? inputs - begin : MAX_BLOCK;
            matmul_block(l, from, w, x + begin * in, in, count, packed_columns(inputs), out);
            for (int64_t n = 0; n < count; n++) {
                float *to = y + (begin + n) * stride;
                for (int64_t o = own; own == from && o < own + OUTPUTS; o += LANES) {
                    vector sum = load(out + n * OUTPUTS + o - own);
                    if (l->bias) sum += load_weights(l->bias + o);
                    if (add) sum += load(to + o);
                    store(to + o, sum);
                }
                for (int64_t o = own; own != from && o < from + OUTPUTS; o++)
                    to[o] = out[n * OUTPUTS + o - from] + (l->bias ? weight_to_float(l->bias[o]) : 0.0f) + (add ? to[o] : 0.0f);
            }
        }
    }
}

/* silu(gate) * up, packed. The sizes are multiples of OUTPUTS, so each thread has its own outputs. */
static void apply_gate_and_up(
    const linear *gate, const linear *up, const packed_input *x, int64_t inputs, int64_t in, packed_input *packed, weight *room) {
    float gates[MAX_BLOCK * OUTPUTS], ups[MAX_BLOCK * OUTPUTS];
    weight *room_of_up = room + OUTPUTS * in;
#pragma omp for schedule(static)
    for (int64_t from = 0; from < gate->outputs; from += OUTPUTS) {
        const weight *gate_weights = weights_of(gate, from, in, inputs, room);
        const weight *up_weights = weights_of(up, from, in, inputs, room_of_up);
        for (int64_t begin = 0; begin < inputs; begin += MAX_BLOCK) {
            int64_t count = inputs - begin < MAX_BLOCK ? inputs - begin : MAX_BLOCK;
            matmul_block(gate, from, gate_weights, x + begin * in, in, count, packed_columns(inputs), gates);
            matmul_block(up, from, up_weights, x + begin * in, in, count, packed_columns(inputs), ups);
            for (int64_t n = 0; n < count; n++)
                for (int64_t o = 0; o < OUTPUTS; o += LANES) {
                    vector own = load(gates + n * OUTPUTS + o), factor = load(ups + n * OUTPUTS + o);
                    if (gate->bias) own += load_weights(gate->bias + from + o);
                    if (up->bias) factor += load_weights(up->bias + from + o);
                    pack_input(packed, begin + n, from + o, gate->outputs, inputs, own / (1.0f + exp_vector(-own)) * factor);
                }
        }
    }
}

/* ---- norms and packing ------------------------------------------------------------------------------------------------ */

/* 1 / sqrt(mean(x^2) + epsilon) */
static float rms_scale(const float *x, int64_t size, float epsilon) {
    vector squares = {};
    for (int64_t i = 0; i < size; i += LANES) squares += load(x + i) * load(x + i);
    return 1.0f / sqrtf(sum_of_lanes(squares) / size + epsilon);
}

/* A job packs PART elements of a block of inputs. Jobs do not share inputs of a block: these lie in the same cache lines,
 * and two threads must not write to one line at once. */
#define PART 32
static inline int64_t input_blocks(int64_t inputs) { return (inputs + INPUTS - 1) / INPUTS; }
static inline int64_t block_end(int64_t block, int64_t inputs) {
    return inputs < (block + 1) * INPUTS ? inputs : (block + 1) * INPUTS;
}

/* RMSNorm of the last `kept` tokens of each row, packed. */
static void
normalize_and_pack(const model *m, const forward_args *p, const float *x, const float *norm, int64_t kept, packed_input *packed) {
    int64_t size = m->hidden_size, inputs = p->batch * kept, parts = size / PART, scaled_block = -1;
    const float *from[INPUTS];
    float scales[INPUTS];
#pragma omp for schedule(static)
    for (int64_t job = 0; job < input_blocks(inputs) * parts; job++) {
        int64_t block = job / parts, begin = block * INPUTS, part = job % parts * PART;
        for (int64_t n = begin; block != scaled_block && n < block_end(block, inputs); n++) {
            from[n - begin] = x + (n / kept * p->tokens + p->tokens - kept + n % kept) * size;
            scales[n - begin] = rms_scale(from[n - begin], size, m->norm_epsilon);
        }
        scaled_block = block;
        for (int64_t n = begin; n < block_end(block, inputs); n++)
            for (int64_t i = part; i < part + PART; i += LANES)
                pack_input(packed, n, i, size, inputs, load(from[n - begin] + i) * scales[n - begin] * load(norm + i));
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------------- */

/* Rotary embedding of one head, in place: half of the head against the other half. */
static inline void apply_rope(float *x, int64_t head_dim, const float *cosine, const float *sine) {
    int64_t half = head_dim / 2;
    for (int64_t d = 0; d < half; d++) {
        float low = x[d], high = x[d + half];
        x[d] = low * cosine[d] + high * sine[d];
        x[d + half] = high * cosine[d + half] + low * sine[d + half];
    }
}

/* One token and head: norm where the model has one, rotary embedding of a query or key, and a key or value into the cache. */
static void rotate_head(const model *m, const layer *l, const forward_args *p, float *qkv, weight *cache, int64_t n, int64_t head) {
    int64_t head_dim = m->head_dim, row = n / p->tokens, slot = p->first_slot[row] + n % p->tokens;
    int is_query = head < m->heads, is_value = head >= m->heads + m->key_value_heads;
    float *x = qkv + (n * (m->heads + 2 * m->key_value_heads) + head) * head_dim;
    const float *norm = is_query ? l->query_norm : is_value ? 0 : l->key_norm;
    float scale = norm ? rms_scale(x, head_dim, m->norm_epsilon) : 1.0f;
    for (int64_t d = 0; norm && d < head_dim; d++) x[d] *= scale * norm[d];
    if (!is_value) apply_rope(x, head_dim, p->cosine + slot * head_dim, p->sine + slot * head_dim);
    if (is_query) return;
    weight *to = cache + ((row * p->cache_slots + slot) * 2 * m->key_value_heads + head - m->heads) * head_dim;
    for (int64_t d = 0; d < head_dim; d += LANES) store_weights(to + d, load(x + d));
}

/* All tokens of a row, for one key head: its queries, its key and its value. */
static void rotate_and_fill_cache(
    const model *m, const layer *l, const forward_args *p, float *qkv, weight *cache, int64_t row, int64_t key_head) {
    int64_t group = m->heads / m->key_value_heads;
    for (int64_t n = row * p->tokens; n < (row + 1) * p->tokens; n++) {
        for (int64_t g = 0; g < group; g++) rotate_head(m, l, p, qkv, cache, n, key_head * group + g);
        rotate_head(m, l, p, qkv, cache, n, m->heads + key_head);
        rotate_head(m, l, p, qkv, cache, n, m->heads + m->key_value_heads + key_head);
    }
}

/* How many slots the longest row sees, rounded up to LANES. */
static int64_t visible_slots(const forward_args *p) {
    int64_t last = 0;
    for (int64_t row = 0; row < p->batch; row++) last = p->first_slot[row] > last ? p->first_slot[row] : last;
    return (last + p->tokens + LANES - 1) / LANES * LANES;
}

/* Up to QUERIES queries of one row that share a key head: numbers begin .. begin + count of its tokens * group queries. */
#define QUERIES 16
typedef struct {
    int64_t row, key_head, group, begin, count;
    int64_t first_slot, visible; /* the slot of the row's first token; how many slots the last query sees */
    const weight *keys, *values; /* of slot 0 */
    int64_t slot_stride;         /* between two slots */
    float *scores;               /* (QUERIES, score_stride) */
    int64_t score_stride;
} query_block;

static query_block
query_block_at(const model *m, const forward_args *p, const weight *cache, int64_t row, int64_t key_head, int64_t block) {
    query_block b = {.row = row, .key_head = key_head, .group = m->heads / m->key_value_heads, .begin = block * QUERIES};
    int64_t left = p->tokens * b.group - b.begin;
    b.count = left < QUERIES ? left : QUERIES;
    b.first_slot = p->first_slot[b.row], b.visible = b.first_slot + (b.begin + b.count - 1) / b.group + 1;
    b.slot_stride = 2 * m->key_value_heads * m->head_dim;
    b.keys = cache + b.row * p->cache_slots * b.slot_stride + b.key_head * m->head_dim;
    b.values = b.keys + m->key_value_heads * m->head_dim;
    return b;
}

/* The token and the head of query `q` of the block. */
static inline int64_t token_of_query(const forward_args *p, const query_block *b, int64_t q) {
    return b->row * p->tokens + (b->begin + q) / b->group;
}
static inline int64_t head_of_query(const query_block *b, int64_t q) {
    return b->key_head * b->group + (b->begin + q) % b->group;
}

/* Scores of all visible slots, and each query's highest score. Slots that a query does not see yet get -inf. */
ALWAYS_INLINE void
score_queries(const model *m, const forward_args *p, const query_block *b, const float *qkv, vector *highest) {
    int64_t head_dim = m->head_dim, all_heads = m->heads + 2 * m->key_value_heads;
    float queries[QUERIES][head_dim], widened[LANES][head_dim], scale = 1.0f / sqrtf(head_dim);
    const float *keys[LANES];
    for (int64_t q = 0; q < b->count; q++) {
        const float *from = qkv + (token_of_query(p, b, q) * all_heads + head_of_query(b, q)) * head_dim;
        for (int64_t d = 0; d < head_dim; d += LANES) store(queries[q] + d, load(from + d) * scale);
        highest[q] = broadcast(-INFINITY);
    }
    for (int64_t slot = 0; slot < b->visible; slot += LANES) {
        for (int64_t s = 0; s < LANES; s++) { /* behind the last slot: the last slot again, whose scores become -inf */
            const weight *key = b->keys + (slot + s < b->visible ? slot + s : b->visible - 1) * b->slot_stride;
#ifdef BF16
            for (int64_t d = 0; d < head_dim; d += LANES) store(widened[s] + d, load_weights(key + d));
            keys[s] = widened[s];
#else
            (void)widened;
            keys[s] = key;
#endif
        }
        for (int64_t q = 0; q < b->count; q++) {
            vector parts[LANES] = {};
            for (int64_t d = 0; d < head_dim; d += LANES) {
                vector query = load(queries[q] + d);
                for (int s = 0; s < LANES; s++) parts[s] += query * load(keys[s] + d);
            }
            int_vector unseen =
                (int_vector){EACH_LANE} + (int32_t)(slot - b->first_slot - (b->begin + q) / b->group) > 0;
            vector score = blend(unseen, broadcast(-INFINITY), sums_of_lanes(parts));
            highest[q] = max_vector(score, highest[q]);
            store(b->scores + q * b->score_stride + slot, score);
        }
    }
}

/* Turns scores into exp(score - highest), and returns their sum. A score of -inf becomes 0. */
static inline float exponentials_of_scores(float *scores, int64_t visible, vector highest) {
    float most = max_of_lanes(highest);
    vector sum = {};
    for (int64_t slot = 0; slot < visible; slot += LANES) {
        vector score = load(scores + slot);
        vector share = blend(score == -INFINITY, (vector){}, exp_vector(score - most));
        store(scores + slot, share);
        sum += share;
    }
    return sum_of_lanes(sum);
}

/* Sums of the values, weighted by the scores of `count` queries from `q` on, for SPAN vectors of a head; in the order of
 * slots. */
#define TOGETHER 4
#define SPAN (LANES == 16 ? 4 : 2) /* sums[TOGETHER][SPAN] stay in registers */
ALWAYS_INLINE void
sum_values(const int count, const query_block *b, int64_t q, const int64_t *at, vector (*mixed)[SPAN]) {
    const float *scores = b->scores + q * b->score_stride;
    const weight *values = b->values;
    int64_t score_stride = b->score_stride, slot_stride = b->slot_stride, visible = b->visible;
    vector sums[TOGETHER][SPAN] = {};
    for (int64_t slot = 0; slot < visible; slot++) {
        const weight *value = values + slot * slot_stride;
        vector own[SPAN];
        for (int v = 0; v < SPAN; v++) own[v] = load_weights(value + at[v]);
        for (int k = 0; k < count; k++)
            for (int v = 0; v < SPAN; v++) sums[k][v] += own[v] * scores[k * score_stride + slot];
    }
    memcpy(mixed, sums, sizeof sums);
}

/* The attention output of a block of queries, packed. A slot that a query does not see has weight 0, and changes no bit of its
 * sums. */
static void attend_block(const model *m, const forward_args *p, const query_block *b, const float *qkv, packed_input *packed) {
    int64_t head_dim = m->head_dim;
    vector highest[QUERIES];
    float sums[QUERIES];
    score_queries(m, p, b, qkv, highest);
    for (int64_t q = 0; q < b->count; q++)
        sums[q] = exponentials_of_scores(b->scores + q * b->score_stride, b->visible, highest[q]);
    for (int64_t q = 0; q < b->count; q += TOGETHER)
        for (int64_t d = 0; d < head_dim; d += SPAN * LANES) { /* behind the end of a head: its last vector again */
            int64_t few = b->count - q < TOGETHER ? b->count - q : TOGETHER, at[SPAN];
            for (int v = 0; v < SPAN; v++) at[v] = d + v * LANES < head_dim ? d + v * LANES : head_dim - LANES;
            vector mixed[TOGETHER][SPAN] = {};
#define SUM_VALUES(count) case count: sum_values(count, b, q, at, mixed); break;
            switch (few) { SUM_VALUES(1) SUM_VALUES(2) SUM_VALUES(3) SUM_VALUES(4) }
            for (int64_t k = 0; k < few; k++)
                for (int v = 0; v < SPAN; v++)
                    pack_input(
                        packed, token_of_query(p, b, q + k), head_of_query(b, q + k) * head_dim + at[v], m->heads * head_dim,
                        p->batch * p->tokens, mixed[k][v] / sums[q + k]);
        }
}

/* Rotary embedding, cache and attention. `scores` has room for (QUERIES, visible_slots). A thread that attends with a key head
 * has filled the cache of this head itself, unless blocks of its queries are shared out. */
static void attend(
    const model *m, const layer *l, const forward_args *p, float *qkv, weight *cache, float *scores, packed_input *packed) {
    int64_t blocks = (p->tokens * (m->heads / m->key_value_heads) + QUERIES - 1) / QUERIES, pairs = p->batch * m->key_value_heads;
#pragma omp for schedule(static) nowait
    for (int64_t pair = 0; pair < pairs; pair++)
        rotate_and_fill_cache(m, l, p, qkv, cache, pair / m->key_value_heads, pair % m->key_value_heads);
    if (blocks > 1) {
#pragma omp barrier
    }
#pragma omp for schedule(static)
    for (int64_t job = 0; job < pairs * blocks; job++) {
        int64_t pair = job / blocks;
        query_block b = query_block_at(m, p, cache, pair / m->key_value_heads, pair % m->key_value_heads, job % blocks);
        b.scores = scores, b.score_stride = visible_slots(p);
        attend_block(m, p, &b, qkv, packed);
    }
}

/* ---- the pass --------------------------------------------------------------------------------------------------------- */

/* The buffers in `scratch`. SCORES and DEQUANTIZED have a part for each thread. The address sanitizer's build puts gaps
 * between buffers, which its harness poisons. */
enum { HIDDEN, QKV, SCORES, DEQUANTIZED, PACKED_HIDDEN, PACKED_ATTENTION, PACKED_MLP, BUFFERS };
#ifdef __SANITIZE_ADDRESS__
#define BUFFER_GAP 64
#else
#define BUFFER_GAP 0
#endif

static int64_t scores_per_thread(const forward_args *p) { return visible_slots(p) * QUERIES; }

/* Floats that hold OUTPUTS rows of weights of the widest linear layer. */
static int64_t dequantized_per_thread(const model *m) {
    int64_t widest = m->heads * m->head_dim;
    if (widest < m->hidden_size) widest = m->hidden_size;
    if (widest < m->intermediate_size) widest = m->intermediate_size;
    return OUTPUTS * widest;
}

/* Buffer i begins at float begin[i] of the scratch; begin[BUFFERS] is the size of the scratch. */
static void place_buffers(const model *m, const forward_args *p, int64_t *begin) {
    int64_t n = p->batch * p->tokens, attention = m->heads * m->head_dim, packed = input_blocks(n) * INPUTS;
    const int64_t sizes[BUFFERS] = {
        [HIDDEN] = n * m->hidden_size,
        [QKV] = n * (m->heads + 2 * m->key_value_heads) * m->head_dim,
        [SCORES] = p->threads * scores_per_thread(p),
        [DEQUANTIZED] = p->threads * dequantized_per_thread(m),
        [PACKED_HIDDEN] = packed * m->hidden_size * (int64_t)sizeof(packed_input) / 4,
        [PACKED_ATTENTION] = packed * attention * (int64_t)sizeof(packed_input) / 4,
        [PACKED_MLP] = packed * m->intermediate_size * (int64_t)sizeof(packed_input) / 4,
    };
    begin[0] = 0;
    for (int buffer = 0; buffer < BUFFERS; buffer++) begin[buffer + 1] = begin[buffer] + sizes[buffer] + BUFFER_GAP;
}

/* How many floats `scratch` needs. */
int64_t llama_scratch_floats(const model *m, const forward_args *p) {
    int64_t begin[BUFFERS + 1];
    place_buffers(m, p, begin);
    return begin[BUFFERS];
}

/* Returns 0, 1 if an id is not in the vocabulary, or 2 if a slot is not in the cache. On 1 or 2 nothing is written. */
int llama_forward(const model *m, const forward_args *p) {
    int64_t n_tokens = p->batch * p->tokens, hidden_size = m->hidden_size, intermediate_size = m->intermediate_size;
    int64_t query_size = m->heads * m->head_dim, key_size = m->key_value_heads * m->head_dim, stride = query_size + 2 * key_size;
    for (int64_t n = 0; n < n_tokens; n++)
        if (p->ids[n] < 0 || p->ids[n] >= m->vocab_size) return 1;
    for (int64_t row = 0; row < p->batch; row++)
        if (p->first_slot[row] < 0 || p->first_slot[row] + p->tokens > p->cache_slots) return 2;
    int64_t begin[BUFFERS + 1];
    place_buffers(m, p, begin);
    float *hidden = p->scratch + begin[HIDDEN], *qkv = p->scratch + begin[QKV];
    packed_input *packed_hidden = (packed_input *)(p->scratch + begin[PACKED_HIDDEN]);
    packed_input *packed_attention = (packed_input *)(p->scratch + begin[PACKED_ATTENTION]);
    packed_input *packed_mlp = (packed_input *)(p->scratch + begin[PACKED_MLP]);
#pragma omp parallel num_threads(p->threads)
    {
        float *scores = p->scratch + begin[SCORES] + omp_get_thread_num() * scores_per_thread(p);
        weight *dequantized = (weight *)(p->scratch + begin[DEQUANTIZED] + omp_get_thread_num() * dequantized_per_thread(m));
        configure_tiles(n_tokens);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < n_tokens; n++)
            for (int64_t i = 0; i < hidden_size; i += LANES)
                store(hidden + n * hidden_size + i, load_weights(m->embedding + p->ids[n] * hidden_size + i));
        for (int64_t number = 0; number < m->layer_count; number++) {
            const layer *l = m->layers + number;
            normalize_and_pack(m, p, hidden, l->attention_norm, p->tokens, packed_hidden);
            apply_linear(&l->query, packed_hidden, n_tokens, hidden_size, qkv, stride, 0, dequantized);
            apply_linear(&l->key, packed_hidden, n_tokens, hidden_size, qkv + query_size, stride, 0, dequantized);
            apply_linear(&l->value, packed_hidden, n_tokens, hidden_size, qkv + query_size + key_size, stride, 0, dequantized);
#pragma omp barrier
            attend(m, l, p, qkv, p->caches[number], scores, packed_attention);
            apply_linear(&l->output, packed_attention, n_tokens, query_size, hidden, hidden_size, 1, dequantized);
#pragma omp barrier
            normalize_and_pack(m, p, hidden, l->mlp_norm, p->tokens, packed_hidden);
            apply_gate_and_up(&l->gate, &l->up, packed_hidden, n_tokens, hidden_size, packed_mlp, dequantized);
            apply_linear(&l->down, packed_mlp, n_tokens, intermediate_size, hidden, hidden_size, 1, dequantized);
#pragma omp barrier
        }
        normalize_and_pack(m, p, hidden, m->final_norm, p->kept, packed_hidden);
        configure_tiles(p->batch * p->kept);
        apply_linear(&m->lm_head, packed_hidden, p->batch * p->kept, hidden_size, p->logits, m->lm_head.outputs, 0, dequantized);
        release_tiles();
    }
    return 0;
}
