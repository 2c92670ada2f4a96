/* Log probabilities of a few tokens out of the logits of a whole vocabulary, and the gradient with respect to these logits.
 * pipeline/distillation/sparse_log_probs.py says what they are for, and calls this code.
 *
 * A row of logits stays in the processor's cache while it is read twice. Operations on whole tensors would read memory a
 * dozen times. Built for one dtype of the logits: fp32, or bf16 with -DBF16. Shapes: N rows, V tokens, K kept tokens. All
 * arrays are contiguous.
 */
#include "simd.h"

#define SUM_BLOCK 1024 /* numbers that are summed in fp32; the sums of the blocks are added in fp64 */
static const float MIN_REST_MASS = 1e-30f;

typedef struct {
    int64_t rows, vocab_size, kept; /* N, V, K */
    const weight *logits;           /* (N, V) */
    const int64_t *ids;             /* (N, K): the kept tokens, all different within a row */
    const int64_t *tokens;          /* (N): one more token of each row */
    float *log_q;                   /* (N, K), written by forward */
    float *token_log_q;             /* (N), written by forward */
    float *rest_q;                  /* (N), written by forward: the mass of all tokens that are not kept */
    float *log_sum;                 /* (N), written by forward: log of the sum of exponentials */
    float *scratch;                 /* (threads, V rounded up to LANES) */
    int32_t threads;
} log_prob_args;

typedef struct {
    const float *log_q, *token_log_q, *rest_log_q; /* (N, K), (N), (N): gradients with respect to the outputs */
    weight *logits;                                /* (N, V), written by backward */
} gradient_args;

const field_layout log_prob_args_layout[] = {
    STRUCT(log_prob_args),
    FIELD(log_prob_args, rows),
    FIELD(log_prob_args, vocab_size),
    FIELD(log_prob_args, kept),
    FIELD(log_prob_args, logits),
    FIELD(log_prob_args, ids),
    FIELD(log_prob_args, tokens),
    FIELD(log_prob_args, log_q),
    FIELD(log_prob_args, token_log_q),
    FIELD(log_prob_args, rest_q),
    FIELD(log_prob_args, log_sum),
    FIELD(log_prob_args, scratch),
    FIELD(log_prob_args, threads),
    END_OF_LAYOUT,
};
const field_layout gradient_args_layout[] = {
    STRUCT(gradient_args),
    FIELD(gradient_args, log_q),
    FIELD(gradient_args, token_log_q),
    FIELD(gradient_args, rest_log_q),
    FIELD(gradient_args, logits),
    END_OF_LAYOUT,
};

static int64_t round_up_to_lanes(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

/* LANES logits of a row; behind the end of the row -inf. */
static vector load_logits(const weight *row, int64_t at, int64_t size) {
    if (at + LANES <= size) return load_weights(row + at);
    float padded[LANES];
    for (int lane = 0; lane < LANES; lane++) padded[lane] = at + lane < size ? weight_to_float(row[at + lane]) : -INFINITY;
    return load(padded);
}

static float max_logit(const weight *row, int64_t size) {
    vector highest = broadcast(-INFINITY);
    for (int64_t at = 0; at < size; at += LANES) highest = max_vector(load_logits(row, at, size), highest);
    return max_of_lanes(highest);
}

/* The sum of `size` numbers, a multiple of LANES. */
static double sum_in_blocks(const float *numbers, int64_t size) {
    double sum = 0;
    for (int64_t begin = 0; begin < size; begin += SUM_BLOCK) {
        vector block = {};
        for (int64_t at = begin; at < begin + SUM_BLOCK && at < size; at += LANES) block += load(numbers + at);
        sum += sum_of_lanes(block);
    }
    return sum;
}

/* Whether all ids are tokens of the vocabulary. */
static int all_in_vocabulary(const int64_t *ids, int64_t count, int64_t vocab_size) {
    for (int64_t n = 0; n < count; n++)
        if (ids[n] < 0 || ids[n] >= vocab_size) return 0;
    return 1;
}

/* Returns 0, or 1 if an id is not a token of the vocabulary: then nothing is written. */
int sparse_log_probs_forward(const log_prob_args *a) {
    int64_t vocab_size = a->vocab_size, kept = a->kept, padded = round_up_to_lanes(vocab_size);
    if (!all_in_vocabulary(a->ids, a->rows * kept, vocab_size) || !all_in_vocabulary(a->tokens, a->rows, vocab_size)) return 1;
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int64_t n = 0; n < a->rows; n++) {
        const weight *row = a->logits + n * vocab_size;
        const int64_t *ids = a->ids + n * kept;
        float *mass = a->scratch + omp_get_thread_num() * padded, highest = max_logit(row, vocab_size);
        for (int64_t at = 0; at < vocab_size; at += LANES)
            store(mass + at, exp_vector(load_logits(row, at, vocab_size) - highest));
        for (int64_t at = vocab_size; at < padded; at++) mass[at] = 0;
        double kept_mass = 0;
        for (int64_t k = 0; k < kept; k++) kept_mass += mass[ids[k]];
        /* The rest is summed without the kept tokens: in fp32, 1 - sum(q) of the kept tokens may be 0 or negative. */
        for (int64_t k = 0; k < kept; k++) mass[ids[k]] = 0;
        double rest_mass = sum_in_blocks(mass, padded), sum = kept_mass + rest_mass;
        float log_sum = a->log_sum[n] = highest + (float)log(sum);
        for (int64_t k = 0; k < kept; k++) a->log_q[n * kept + k] = weight_to_float(row[ids[k]]) - log_sum;
        a->token_log_q[n] = weight_to_float(row[a->tokens[n]]) - log_sum;
        a->rest_q[n] = (float)(rest_mass / sum);
    }
    return 0;
}

/* The gradient with respect to the logits, after sparse_log_probs_forward with the same arguments:
 * d log q_k / d logit_i = [i = k] - q_i;  d log(rest) / d logit_i = [i not kept] q_i / rest - q_i. */
void sparse_log_probs_backward(const log_prob_args *a, const gradient_args *g) {
    int64_t vocab_size = a->vocab_size, kept = a->kept, padded = round_up_to_lanes(vocab_size);
    int64_t whole_vectors = vocab_size / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int64_t n = 0; n < a->rows; n++) {
        const weight *row = a->logits + n * vocab_size;
        float *gradient = a->scratch + omp_get_thread_num() * padded, sum = g->token_log_q[n] + g->rest_log_q[n];
        for (int64_t k = 0; k < kept; k++) sum += g->log_q[n * kept + k];
        float rest = a->rest_q[n] > MIN_REST_MASS ? a->rest_q[n] : MIN_REST_MASS, factor = g->rest_log_q[n] / rest - sum;
        for (int64_t at = 0; at < vocab_size; at += LANES)
            store(gradient + at, exp_vector(load_logits(row, at, vocab_size) - a->log_sum[n]) * factor);
        for (int64_t k = 0; k < kept; k++) {
            int64_t place = n * kept + k;
            gradient[a->ids[place]] = g->log_q[place] - expf(a->log_q[place]) * sum;
        }
        gradient[a->tokens[n]] += g->token_log_q[n];
        weight *to = g->logits + n * vocab_size, last[LANES];
        for (int64_t at = 0; at < whole_vectors; at += LANES) store_weights(to + at, load(gradient + at));
        store_weights(last, load(gradient + padded - LANES));
        for (int64_t at = whole_vectors; at < vocab_size; at++) to[at] = last[at - whole_vectors];
    }
}
