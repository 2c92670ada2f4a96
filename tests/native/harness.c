/* Calls every exported function of the C code over many shapes and compares the results with plain loops in double precision.
 * `make sanitize` builds it with the address and undefined behaviour sanitizers, once for each build that the processor runs.
 * It includes the sources, so that it can poison the gaps between the buffers of the scratch memory. VARIANT names the build.
 * Prints one line a group of cases. The last line holds the counts, which sanitize.py adds up.
 */
#include "../../pipeline/native/llama_forward.c"
#include "../../pipeline/native/sparse_log_probs.c"
#include "../../pipeline/native/sampling.c"
#include <stdio.h>
#include <stdlib.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif
#ifdef BF16
#define DTYPE "bf16"
#define TOLERANCE 0.02 /* of the largest number: bf16 roundings may fall to either side */
#else
#define DTYPE "fp32"
#define TOLERANCE 2e-5
#endif

static int passed, failed, skipped, group_passed, group_failed;

static void check(int good, const char *what, int64_t a, int64_t b) {
    if (good) group_passed++;
    else group_failed++, printf("  failed: %s (%lld, %lld)\n", what, (long long)a, (long long)b);
}

static void end_group(const char *name) {
    printf("%s  %s %s: %s (%d cases)\n", group_failed ? "failed" : "passed", VARIANT, DTYPE, name, group_passed + group_failed);
    passed += group_passed, failed += group_failed, group_passed = group_failed = 0;
}

/* ---- random arrays, each an allocation of its own: the sanitizer sees an access behind its end --------------------------- */

static uint64_t random_state = 1;
static double uniform(void) { /* in [-1, 1) */
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 33) / (1u << 30) - 1;
}

static void *allocate(int64_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) abort();
    return memory;
}

static weight to_weight(double value) {
    weight all[LANES];
    store_weights(all, broadcast((float)value));
    return all[0];
}
static double rounded(double value) { return weight_to_float(to_weight(value)); }

static weight *random_weights(int64_t count, double scale) {
    weight *w = allocate(count * sizeof(weight));
    float values[LANES];
    weight rounded_values[LANES];
    for (int64_t begin = 0; begin < count; begin += LANES) {
        for (int i = 0; i < LANES; i++) values[i] = (float)(scale * uniform());
        store_weights(rounded_values, load(values));
        memcpy(w + begin, rounded_values, (count - begin < LANES ? count - begin : LANES) * sizeof *w);
    }
    return w;
}

static float *random_floats(int64_t count, double center, double scale) {
    float *x = allocate(count * sizeof(float));
    for (int64_t i = 0; i < count; i++) x[i] = (float)(center + scale * uniform());
    return x;
}

static int64_t random_below(int64_t limit) { return (int64_t)((uniform() + 1) / 2 * limit); }

/* ---- the Llama forward --------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t batch, tokens, kept, heads, key_value_heads, head_dim, hidden_size, intermediate_size, vocab_size, outputs;
    int biases, head_norms, nf4, threads;
} shape;
static const shape SMALL = {1, 1, 1, 4, 2, 16, 64, 96, 40, 37, 0, 0, 0, 2};

static linear random_linear(const shape *s, int64_t outputs, int64_t inputs) {
    linear l = {.outputs = outputs, .bias = s->biases ? random_weights(outputs, 0.3) : 0};
    if (!s->nf4) {
        l.weight = random_weights(outputs * inputs, 0.3);
        return l;
    }
    int64_t blocks = outputs * inputs / 64, tables = 5;
    uint8_t *codes = allocate(blocks * 32);
    uint16_t *index = allocate(blocks * sizeof *index);
    for (int64_t i = 0; i < blocks * 32; i++) codes[i] = (uint8_t)random_below(256);
    for (int64_t i = 0; i < blocks; i++) index[i] = (uint16_t)random_below(tables);
    l.nf4_codes = codes, l.nf4_table_index = index, l.nf4_tables = random_weights(tables * 16, 0.3);
    return l;
}

static void free_linear(const linear *l) {
    free((void *)l->weight), free((void *)l->bias), free((void *)l->nf4_codes);
    free((void *)l->nf4_table_index), free((void *)l->nf4_tables);
}

#define LAYERS 2
static model random_model(const shape *s) {
    int64_t hidden = s->hidden_size, query = s->heads * s->head_dim, key = s->key_value_heads * s->head_dim;
    layer *layers = allocate(LAYERS * sizeof *layers);
    for (int number = 0; number < LAYERS; number++)
        layers[number] = (layer){
            .attention_norm = random_floats(hidden, 1, 0.2), .mlp_norm = random_floats(hidden, 1, 0.2),
            .query_norm = s->head_norms ? random_floats(s->head_dim, 1, 0.2) : 0,
            .key_norm = s->head_norms ? random_floats(s->head_dim, 1, 0.2) : 0,
            .query = random_linear(s, query, hidden), .key = random_linear(s, key, hidden),
            .value = random_linear(s, key, hidden), .output = random_linear(s, hidden, query),
            .gate = random_linear(s, s->intermediate_size, hidden), .up = random_linear(s, s->intermediate_size, hidden),
            .down = random_linear(s, hidden, s->intermediate_size)};
    return (model){
        .vocab_size = s->vocab_size, .layer_count = LAYERS, .hidden_size = hidden, .intermediate_size = s->intermediate_size,
        .heads = s->heads, .key_value_heads = s->key_value_heads, .head_dim = s->head_dim, .norm_epsilon = 1e-5f,
        .embedding = random_weights(s->vocab_size * hidden, 1), .final_norm = random_floats(hidden, 1, 0.2),
        .lm_head = random_linear(s, s->outputs, hidden), .layers = layers};
}

static void free_model(const model *m) {
    for (int64_t number = 0; number < m->layer_count; number++) {
        const layer *l = m->layers + number;
        free((void *)l->attention_norm), free((void *)l->mlp_norm), free((void *)l->query_norm), free((void *)l->key_norm);
        const linear *all[] = {&l->query, &l->key, &l->value, &l->output, &l->gate, &l->up, &l->down};
        for (int i = 0; i < 7; i++) free_linear(all[i]);
    }
    free((void *)m->embedding), free((void *)m->final_norm), free((void *)m->layers), free_linear(&m->lm_head);
}

/* One weight, from the matrix or from the nf4 codes. */
static double weight_at(const linear *l, int64_t o, int64_t i, int64_t inputs) {
    if (l->weight) return weight_to_float(l->weight[o * inputs + i]);
    int64_t block = (o * inputs + i) / 64, place = i % 64;
    uint8_t byte = l->nf4_codes[block * 32 + place % 32];
    return weight_to_float(l->nf4_tables[16 * l->nf4_table_index[block] + (place < 32 ? byte & 15 : byte >> 4)]);
}

static void reference_linear(const linear *l, const double *x, int64_t inputs, double *y, int add) {
    double *packed = allocate(inputs * sizeof *packed);
    for (int64_t i = 0; i < inputs; i++) packed[i] = sizeof(packed_input) == sizeof(weight) ? rounded(x[i]) : (float)x[i];
    for (int64_t o = 0; o < l->outputs; o++) {
        double sum = l->bias ? weight_to_float(l->bias[o]) : 0;
        for (int64_t i = 0; i < inputs; i++) sum += weight_at(l, o, i, inputs) * packed[i];
        y[o] = sum + (add ? y[o] : 0);
    }
    free(packed);
}

static void reference_norm(const double *x, const float *norm, int64_t size, double epsilon, double *y) {
    double squares = 0;
    for (int64_t i = 0; i < size; i++) squares += x[i] * x[i];
    for (int64_t i = 0; i < size; i++) y[i] = x[i] / sqrt(squares / size + epsilon) * norm[i];
}

static void reference_rope(double *x, int64_t head_dim, const float *cosine, const float *sine) {
    double *old = allocate(head_dim * sizeof *old);
    memcpy(old, x, head_dim * sizeof *old);
    for (int64_t d = 0; d < head_dim; d++) x[d] = old[d] * cosine[d] + old[(d + head_dim / 2) % head_dim] * sine[d];
    free(old);
}

/* One token through one layer. `cache` is that of its row, and gets the token's keys and values. */
static void reference_layer(const model *m, const layer *l, const forward_args *p, int64_t slot, weight *cache, double *x) {
    int64_t head_dim = m->head_dim, query_size = m->heads * head_dim, key_size = m->key_value_heads * head_dim;
    int64_t width = m->intermediate_size + m->hidden_size + query_size;
    double *y = allocate(width * sizeof *y), *z = allocate(width * sizeof *z), *scores = allocate((slot + 1) * sizeof *scores);
    double *qkv = allocate((query_size + 2 * key_size) * sizeof *qkv);
    reference_norm(x, l->attention_norm, m->hidden_size, m->norm_epsilon, y);
    reference_linear(&l->query, y, m->hidden_size, qkv, 0);
    reference_linear(&l->key, y, m->hidden_size, qkv + query_size, 0);
    reference_linear(&l->value, y, m->hidden_size, qkv + query_size + key_size, 0);
    for (int64_t head = 0; head < m->heads + m->key_value_heads; head++) {
        const float *norm = head < m->heads ? l->query_norm : l->key_norm;
        if (norm) reference_norm(qkv + head * head_dim, norm, head_dim, m->norm_epsilon, qkv + head * head_dim);
        reference_rope(qkv + head * head_dim, head_dim, p->cosine + slot * head_dim, p->sine + slot * head_dim);
    }
    for (int64_t i = 0; i < 2 * key_size; i++) cache[slot * 2 * key_size + i] = to_weight(qkv[query_size + i]);
    for (int64_t head = 0; head < m->heads; head++) {
        int64_t key = head / (m->heads / m->key_value_heads) * head_dim;
        double sum = 0;
        for (int64_t s = 0; s <= slot; s++) {
            scores[s] = 0;
            for (int64_t d = 0; d < head_dim; d++)
                scores[s] += qkv[head * head_dim + d] * weight_to_float(cache[s * 2 * key_size + key + d]);
            sum += scores[s] = exp(scores[s] / sqrt((double)head_dim));
        }
        for (int64_t d = 0; d < head_dim; d++) {
            z[head * head_dim + d] = 0;
            for (int64_t s = 0; s <= slot; s++)
                z[head * head_dim + d] += scores[s] / sum * weight_to_float(cache[s * 2 * key_size + key_size + key + d]);
        }
    }
    reference_linear(&l->output, z, query_size, x, 1);
    reference_norm(x, l->mlp_norm, m->hidden_size, m->norm_epsilon, y);
    reference_linear(&l->gate, y, m->hidden_size, z, 0);
    reference_linear(&l->up, y, m->hidden_size, y + m->hidden_size, 0);
    for (int64_t i = 0; i < m->intermediate_size; i++) z[i] = z[i] / (1 + exp(-z[i])) * y[m->hidden_size + i];
    reference_linear(&l->down, z, m->intermediate_size, x, 1);
    free(y), free(z), free(scores), free(qkv);
}

/* Logits (B, kept, outputs); the caches are filled as the forward fills them. */
static void reference_forward(const model *m, const forward_args *p, weight **caches, double *logits) {
    int64_t row_size = p->cache_slots * 2 * m->key_value_heads * m->head_dim;
    double *x = allocate(m->hidden_size * sizeof *x), *y = allocate(m->hidden_size * sizeof *y);
    for (int64_t row = 0; row < p->batch; row++)
        for (int64_t t = 0; t < p->tokens; t++) {
            for (int64_t i = 0; i < m->hidden_size; i++)
                x[i] = weight_to_float(m->embedding[p->ids[row * p->tokens + t] * m->hidden_size + i]);
            for (int64_t number = 0; number < m->layer_count; number++)
                reference_layer(m, m->layers + number, p, p->first_slot[row] + t, caches[number] + row * row_size, x);
            if (t < p->tokens - p->kept) continue;
            reference_norm(x, m->final_norm, m->hidden_size, m->norm_epsilon, y);
            int64_t place = row * p->kept + t - (p->tokens - p->kept);
            reference_linear(&m->lm_head, y, m->hidden_size, logits + place * m->lm_head.outputs, 0);
        }
    free(x), free(y);
}

/* The forward with a scratch of exactly the size that it asks for, whose gaps are poisoned. */
static int run_forward(const model *m, forward_args *p) {
    int64_t begin[BUFFERS + 1], floats = llama_scratch_floats(m, p);
    place_buffers(m, p, begin);
    p->scratch = allocate(floats * sizeof(float));
    memset(p->scratch, 0xff, floats * sizeof(float)); /* NaN: it must be written before it is read */
    for (int buffer = 1; buffer <= BUFFERS; buffer++)
        ASAN_POISON_MEMORY_REGION(p->scratch + begin[buffer] - BUFFER_GAP, BUFFER_GAP * sizeof(float));
    int error = llama_forward(m, p);
    ASAN_UNPOISON_MEMORY_REGION(p->scratch, floats * sizeof(float));
    free(p->scratch);
    return error;
}

typedef struct {
    forward_args args;
    weight *caches[LAYERS], *expected_caches[LAYERS];
    int64_t *ids, *first_slot, cache_size;
} inputs;

/* Rows begin at different slots; unused slots are left behind the last one. */
static inputs random_inputs(const shape *s) {
    inputs in = {.args = {.batch = s->batch, .tokens = s->tokens, .kept = s->kept, .threads = s->threads}};
    int64_t slots = s->tokens + 5 * (s->batch - 1) + (s->tokens == 1 ? 18 : 3);
    in.args.cache_slots = slots;
    in.ids = allocate(s->batch * s->tokens * sizeof *in.ids), in.first_slot = allocate(s->batch * sizeof *in.first_slot);
    for (int64_t n = 0; n < s->batch * s->tokens; n++) in.ids[n] = random_below(s->vocab_size);
    for (int64_t row = 0; row < s->batch; row++) in.first_slot[row] = row * 5 + (s->tokens == 1 ? 17 : 0);
    in.cache_size = s->batch * slots * 2 * s->key_value_heads * s->head_dim;
    for (int number = 0; number < LAYERS; number++) {
        in.caches[number] = random_weights(in.cache_size, 1);
        in.expected_caches[number] = allocate(in.cache_size * sizeof(weight));
        memcpy(in.expected_caches[number], in.caches[number], in.cache_size * sizeof(weight));
    }
    float *cosine = random_floats(slots * s->head_dim, 0, 1), *sine = random_floats(slots * s->head_dim, 0, 1);
    in.args.cosine = cosine, in.args.sine = sine, in.args.ids = in.ids, in.args.first_slot = in.first_slot;
    in.args.logits = allocate(s->batch * s->kept * s->outputs * sizeof(float));
    memset(in.args.logits, 0xff, s->batch * s->kept * s->outputs * sizeof(float)); /* NaN where nothing is written */
    return in;
}

static void free_inputs(inputs *in) {
    for (int number = 0; number < LAYERS; number++) free(in->caches[number]), free(in->expected_caches[number]);
    free(in->ids), free(in->first_slot), free((void *)in->args.cosine), free((void *)in->args.sine), free(in->args.logits);
}

static int close_to(const double *expected, const float *actual, int64_t count, double tolerance) {
    double largest = 0, gap = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(actual[i])) return 0;
        largest = fmax(largest, fabs(expected[i])), gap = fmax(gap, fabs(expected[i] - actual[i]));
    }
    return gap <= tolerance * fmax(largest, 1);
}

static void forward_case(shape s) {
    model m = random_model(&s);
    inputs in = random_inputs(&s);
    in.args.caches = in.caches;
    int64_t count = s.batch * s.kept * s.outputs;
    double *expected = allocate(count * sizeof *expected);
    reference_forward(&m, &in.args, in.expected_caches, expected);
    int good = run_forward(&m, &in.args) == 0 && close_to(expected, in.args.logits, count, TOLERANCE);
    for (int number = 0; number < LAYERS; number++)
        for (int64_t i = 0; i < in.cache_size; i++) {
            double wanted = weight_to_float(in.expected_caches[number][i]), found = weight_to_float(in.caches[number][i]);
            good = good && fabs(wanted - found) <= 5 * TOLERANCE * fmax(1, fabs(wanted));
        }
    check(good, "forward (batch, tokens)", s.batch, s.tokens);
    free(expected), free_inputs(&in), free_model(&m);
}

static void forward_shapes(void) {
    shape s = SMALL;
    forward_case(s);
    for (s.threads = 1; s.threads <= 3; s.threads += 2) forward_case(s);
    end_group("forward, one token");
    s = SMALL, s.tokens = s.kept = llama_max_tokens;
    forward_case(s);
    s.kept = 1;
    forward_case(s);
    s.tokens = 1, s.batch = llama_max_tokens;
    forward_case(s);
    end_group("forward, most tokens");
    s = SMALL;
    for (s.tokens = 1; s.tokens <= 2 * INPUTS + 1; s.tokens++) s.kept = s.tokens, forward_case(s);
    end_group("forward, every size of a block of inputs");
    s = SMALL;
    for (s.batch = 2; s.batch <= 4; s.batch++)
        for (s.tokens = 1; s.tokens <= 5; s.tokens++)
            for (s.kept = 1; s.kept <= s.tokens; s.kept += 2) forward_case(s);
    end_group("forward, rows that begin at different slots");
    s = SMALL, s.batch = 2, s.tokens = 3, s.hidden_size = 96, s.intermediate_size = 160, s.heads = 6, s.head_dim = 48;
    for (s.outputs = 16; s.outputs <= 37; s.outputs += 3) forward_case(s);
    for (s.head_dim = 16; s.head_dim <= 144; s.head_dim += 16) forward_case(s);
    end_group("forward, odd widths");
    s = SMALL, s.head_dim = 32, s.threads = 3;
    const int64_t heads[][2] = {{20, 1}, {20, 4}, {6, 3}, {6, 6}, {18, 2}, {1, 1}, {34, 1}};
    for (int i = 0; i < 7; i++)
        for (s.tokens = 1; s.tokens <= 7; s.tokens += 3) {
            s.heads = heads[i][0], s.key_value_heads = heads[i][1];
            forward_case(s);
        }
    end_group("forward, head counts that do not divide a block of queries");
    s = SMALL, s.batch = 2, s.tokens = 4, s.kept = 2, s.biases = 1;
    forward_case(s);
    s.head_norms = 1;
    forward_case(s);
    s.biases = 0;
    forward_case(s);
    end_group("forward, biases and norms of heads");
#ifdef BF16 /* the binding hands nf4 layers to the bf16 build only */
    s = SMALL, s.nf4 = 1, s.hidden_size = 128, s.intermediate_size = 192, s.head_dim = 32, s.threads = 3;
    const int64_t tokens[] = {1, 2, 5, 12, 13, 16, 17, 24, 32, 33};
    for (int i = 0; i < 10; i++) s.tokens = s.kept = tokens[i], s.biases = i % 2, forward_case(s);
    s.batch = 3, s.tokens = s.kept = 2, s.intermediate_size = 64, s.outputs = 17;
    forward_case(s);
    end_group("forward, nf4 layers");
#endif
}

/* A token alone gives the same bits as in a batch. */
static void same_bits(void) {
    shape s = SMALL;
    s.batch = 3, s.tokens = s.kept = 5;
    model m = random_model(&s);
    inputs in = random_inputs(&s);
    in.args.caches = in.caches;
    check(run_forward(&m, &in.args) == 0, "forward of a batch", s.batch, s.tokens);
    int64_t row_size = in.cache_size / s.batch;
    float *logits = allocate(s.outputs * sizeof *logits);
    for (int64_t row = 0; row < s.batch; row++)
        for (int64_t t = 0; t < s.tokens; t++) {
            weight *caches[] = {in.expected_caches[0] + row * row_size, in.expected_caches[1] + row * row_size};
            int64_t id = in.ids[row * s.tokens + t], slot = in.first_slot[row] + t;
            forward_args one = in.args;
            one.batch = one.tokens = one.kept = 1, one.logits = logits;
            one.ids = &id, one.first_slot = &slot, one.caches = caches;
            int error = run_forward(&m, &one);
            float *together = in.args.logits + (row * s.tokens + t) * s.outputs;
            check(!error && !memcmp(logits, together, s.outputs * sizeof *logits), "bits of a token (row, token)", row, t);
        }
    free(logits), free_inputs(&in), free_model(&m);
    end_group("forward, the same bits in every batch");
}

static void refused_inputs(void) {
    shape s = SMALL;
    s.batch = s.tokens = 2;
    model m = random_model(&s);
    inputs in = random_inputs(&s);
    in.args.caches = in.caches;
    const int64_t ids[] = {-1, s.vocab_size, INT64_MAX, INT64_MIN}, slots[] = {-1, in.args.cache_slots - 1, in.args.cache_slots};
    for (int i = 0; i < 4; i++) {
        int64_t own = in.ids[3];
        in.ids[3] = ids[i];
        check(run_forward(&m, &in.args) == 1, "refused id", ids[i], 0);
        in.ids[3] = own;
    }
    for (int i = 0; i < 3; i++) {
        int64_t own = in.first_slot[1];
        in.first_slot[1] = slots[i];
        check(run_forward(&m, &in.args) == 2, "refused slot", slots[i], 0);
        in.first_slot[1] = own;
    }
    for (int number = 0; number < LAYERS; number++)
        check(!memcmp(in.caches[number], in.expected_caches[number], in.cache_size * sizeof(weight)), "unchanged cache", number, 0);
    free_inputs(&in), free_model(&m);
    end_group("forward, ids and slots out of range are refused");
}

/* ---- sparse log probabilities -------------------------------------------------------------------------------------------- */

typedef struct {
    log_prob_args args;
    gradient_args gradients;
    int64_t *ids, *tokens;
} sparse_inputs;

static sparse_inputs random_sparse_inputs(int64_t rows, int64_t vocab_size, int64_t kept, int threads) {
    int64_t *ids = allocate(rows * kept * sizeof *ids), *tokens = allocate(rows * sizeof *tokens);
    int64_t *shuffled = allocate(vocab_size * sizeof *shuffled);
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t i = 0; i < vocab_size; i++) shuffled[i] = i;
        for (int64_t k = 0; k < kept; k++) {
            int64_t other = k + random_below(vocab_size - k), id = shuffled[other];
            shuffled[other] = shuffled[k], ids[n * kept + k] = shuffled[k] = id;
        }
        tokens[n] = n % 2 && kept ? ids[n * kept] : random_below(vocab_size);
    }
    free(shuffled);
    return (sparse_inputs){
        .args = {rows, vocab_size, kept, random_weights(rows * vocab_size, 8), ids, tokens, random_floats(rows * kept, 0, 1),
                 random_floats(rows, 0, 1), random_floats(rows, 0, 1), random_floats(rows, 0, 1),
                 random_floats(threads * round_up_to_lanes(vocab_size), 0, 1), threads},
        .gradients = {random_floats(rows * kept, 0, 1), random_floats(rows, 0, 1), random_floats(rows, 0, 1),
                      random_weights(rows * vocab_size, 1)},
        .ids = ids, .tokens = tokens};
}

static void free_sparse_inputs(sparse_inputs *in) {
    log_prob_args *a = &in->args;
    free((void *)a->logits), free(in->ids), free(in->tokens), free(a->log_q), free(a->token_log_q), free(a->rest_q);
    free(a->log_sum), free(a->scratch), free((void *)in->gradients.log_q), free((void *)in->gradients.token_log_q);
    free((void *)in->gradients.rest_log_q), free(in->gradients.logits);
}

/* Of row n: log probabilities, the mass of the rest, and the gradient of the logits, by the definition. */
static int sparse_row_is_right(const sparse_inputs *in, int64_t n) {
    const log_prob_args *a = &in->args;
    int64_t size = a->vocab_size, kept = a->kept;
    double *q = allocate(size * sizeof *q), *gradient = allocate(size * sizeof *gradient), sum = 0, rest = 0, total;
    float *actual = allocate(size * sizeof *actual);
    char *is_kept = allocate(size);
    memset(is_kept, 0, size);
    for (int64_t k = 0; k < kept; k++) is_kept[a->ids[n * kept + k]] = 1;
    for (int64_t i = 0; i < size; i++) sum += q[i] = exp(weight_to_float(a->logits[n * size + i]));
    for (int64_t i = 0; i < size; i++) q[i] /= sum, rest += is_kept[i] ? 0 : q[i];
    int good = fabs(a->token_log_q[n] - log(q[a->tokens[n]])) < 1e-4 && fabs(a->rest_q[n] - rest) < 1e-5;
    good = good && fabs(a->log_sum[n] - log(sum)) < 1e-4;
    double d_token = in->gradients.token_log_q[n], d_rest = rest > 0 ? in->gradients.rest_log_q[n] : 0;
    total = d_token + in->gradients.rest_log_q[n];
    for (int64_t k = 0; k < kept; k++) {
        good = good && fabs(a->log_q[n * kept + k] - log(q[a->ids[n * kept + k]])) < 1e-4;
        total += in->gradients.log_q[n * kept + k];
    }
    for (int64_t i = 0; i < size; i++) {
        gradient[i] = -total * q[i] + (is_kept[i] ? 0 : d_rest * q[i] / rest);
        actual[i] = weight_to_float(in->gradients.logits[n * size + i]);
    }
    for (int64_t k = 0; k < kept; k++) gradient[a->ids[n * kept + k]] += in->gradients.log_q[n * kept + k];
    gradient[a->tokens[n]] += d_token;
    good = good && close_to(gradient, actual, size, TOLERANCE);
    free(q), free(gradient), free(actual), free(is_kept);
    return good;
}

static void sparse_shapes(void) {
    const int64_t vocab_sizes[] = {1, 7, 15, 16, 17, 33, 1024, 1025, 5003}, rows[] = {0, 1, 2, 5}, kept[] = {0, 1, 5, INT64_MAX};
    for (int v = 0; v < 9; v++)
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < 4; k++) {
                int64_t some = kept[k] < vocab_sizes[v] ? kept[k] : vocab_sizes[v];
                sparse_inputs in = random_sparse_inputs(rows[r], vocab_sizes[v], some, 1 + k % 3);
                int good = sparse_log_probs_forward(&in.args) == 0;
                if (good) sparse_log_probs_backward(&in.args, &in.gradients);
                for (int64_t n = 0; n < rows[r]; n++) good = good && sparse_row_is_right(&in, n);
                check(good, "sparse log probabilities (vocabulary, kept)", vocab_sizes[v], some);
                free_sparse_inputs(&in);
            }
    end_group("sparse log probabilities and their gradient");
    for (int64_t wrong = -1; wrong <= 40; wrong += 41)
        for (int which = 0; which < 2; which++) {
            sparse_inputs in = random_sparse_inputs(3, 40, 5, 2);
            *(which ? in.ids + 14 : in.tokens + 2) = wrong;
            check(sparse_log_probs_forward(&in.args) == 1, "refused id", wrong, which);
            free_sparse_inputs(&in);
        }
    end_group("sparse log probabilities, ids out of range are refused");
}

/* ---- drawing and verification ------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t rows, gamma, vocab_size, padded_size;
    float *logits, *draft_logits, *scratch, **q;
    double *uniform, *sums; /* for each row: G for drawing, G for acceptance, one for the next token */
    int64_t *drafted, *tokens, *row_tokens, *accepted, *next;
    int threads;
} round_inputs;

static round_inputs random_round(int64_t rows, int64_t gamma, int64_t vocab_size, int threads) {
    int64_t padded_size = (vocab_size + 15) / 16 * 16, numbers = 2 * gamma + 1;
    round_inputs in = {
        rows, gamma, vocab_size, padded_size, random_floats(rows * (gamma + 1) * vocab_size, 0, 4),
        random_floats(rows * gamma * vocab_size, 0, 4), random_floats(threads * 2 * padded_size, 0, 1), allocate(gamma * sizeof(float *)),
        allocate(rows * numbers * sizeof(double)), allocate(rows * sizeof(double)), allocate(rows * sizeof(int64_t)),
        allocate(rows * gamma * sizeof(int64_t)), allocate(rows * sizeof(int64_t)), allocate(rows * sizeof(int64_t)),
        allocate(rows * sizeof(int64_t)), threads};
    for (int64_t i = 0; i < rows * numbers; i++) in.uniform[i] = fabs(uniform());
    for (int64_t row = 0; row < rows; row++) in.drafted[row] = random_below(gamma + 1);
    for (int64_t i = 0; i < rows * gamma * vocab_size; i += 3) in.draft_logits[i] = -INFINITY;
    for (int64_t position = 0; position < gamma; position++) in.q[position] = random_floats(rows * padded_size, 0, 1);
    return in;
}

static void free_round(round_inputs *in) {
    for (int64_t position = 0; position < in->gamma; position++) free(in->q[position]);
    free(in->logits), free(in->draft_logits), free(in->scratch), free(in->q), free(in->uniform), free(in->sums), free(in->drafted);
    free(in->tokens), free(in->row_tokens), free(in->accepted), free(in->next);
}

static void softmax_by_definition(const float *logits, int64_t size, double *p) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += p[i] = exp(logits[i]);
    for (int64_t i = 0; i < size; i++) p[i] /= sum;
}

/* Whether `token` is the one at which the cumulative sum of `p` exceeds `number` times its sum, to fp32 rounding. */
static int is_drawn(const double *p, int64_t size, double number, int64_t token) {
    double total = 0, before = 0;
    for (int64_t i = 0; i < size; i++) total += p[i], before += i < token ? p[i] : 0;
    return token >= 0 && token < size && before <= number * total + 1e-5 && number * total <= before + p[token] + 1e-5;
}

static int drawn_row_is_right(const round_inputs *in, int64_t row, int64_t position, const double *q) {
    const float *found = in->q[position] + row * in->padded_size;
    int good = fabs(in->sums[row] - 1) < 1e-5;
    for (int64_t i = 0; i < in->padded_size; i++) good = good && fabs(found[i] - (i < in->vocab_size ? q[i] : 0)) < 1e-6;
    return good && found[in->row_tokens[row]] > 0 &&
           is_drawn(q, in->vocab_size, in->uniform[row * (2 * in->gamma + 1) + position], in->row_tokens[row]);
}

static int verified_row_is_right(const round_inputs *in, int64_t row) {
    int64_t gamma = in->gamma, size = in->vocab_size, position = 0;
    const double *numbers = in->uniform + row * (2 * gamma + 1);
    double *p = allocate(size * sizeof *p);
    for (;; position++) {
        softmax_by_definition(in->logits + (row * (gamma + 1) + position) * size, size, p);
        if (position == in->drafted[row]) break;
        const float *q = in->q[position] + row * in->padded_size;
        int64_t token = in->tokens[row * gamma + position];
        if (!(numbers[gamma + position] < p[token] / q[token])) {
            for (int64_t i = 0; i < size; i++) p[i] = p[i] > q[i] ? p[i] - q[i] : 0;
            break;
        }
    }
    int good = in->accepted[row] == position && is_drawn(p, size, numbers[2 * gamma], in->next[row]);
    free(p);
    return good;
}

static void rounds(void) {
    const int64_t vocab_sizes[] = {2, 7, 16, 17, 255, 256, 257, 1025}, gammas[] = {0, 1, 5}, rows[] = {1, 3, 40};
    for (int v = 0; v < 8; v++)
        for (int g = 0; g < 3; g++)
            for (int r = 0; r < 3; r++) {
                round_inputs in = random_round(rows[r], gammas[g], vocab_sizes[v], 1 + r);
                int64_t stride = 2 * in.gamma + 1, size = in.vocab_size;
                float *logits = allocate(in.rows * size * sizeof *logits);
                double *q = allocate(size * sizeof *q);
                int good = 1;
                for (int64_t position = 0; position < in.gamma; position++) {
                    for (int64_t row = 0; row < in.rows; row++)
                        memcpy(logits + row * size, in.draft_logits + (row * in.gamma + position) * size, size * sizeof *logits);
                    draw_args a = {in.rows, size, in.padded_size, stride, 1, logits, in.uniform + position, in.q[position],
                                   in.row_tokens, in.sums, in.threads};
                    draw_tokens(&a);
                    for (int64_t row = 0; row < in.rows; row++) {
                        in.tokens[row * in.gamma + position] = in.row_tokens[row];
                        softmax_by_definition(logits + row * size, size, q);
                        good = good && drawn_row_is_right(&in, row, position, q);
                    }
                }
                check(good, "drawn tokens (vocabulary, drafts)", size, in.gamma);
                verify_args a = {in.rows, in.gamma, size, in.padded_size, stride, 1, in.logits, (const float *const *)in.q,
                                 in.tokens, in.drafted, in.uniform + in.gamma, in.uniform + 2 * in.gamma, in.accepted, in.next,
                                 in.sums, in.scratch, in.threads};
                verify_tokens(&a);
                good = 1;
                for (int64_t row = 0; row < in.rows; row++) good = good && verified_row_is_right(&in, row);
                check(good, "verified tokens (vocabulary, drafts)", size, in.gamma);
                free(logits), free(q), free_round(&in);
            }
    end_group("drawing and verification");
}

int main(void) {
    setvbuf(stdout, 0, _IOLBF, 0);
    if (llama_features_granted()) forward_shapes(), same_bits(), refused_inputs();
    else printf("skipped: %s %s, forward (the kernel does not grant the tile registers)\n", VARIANT, DTYPE), skipped++;
    sparse_shapes();
    rounds();
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0;
}
