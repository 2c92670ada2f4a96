/* Draws tokens from logits, and verifies drafted tokens, in one call each: softmax at a temperature without filters, and
 * token-level rejection sampling. pipeline/speculation/sampling.py and verification.py say what is computed;
 * pipeline/speculation/compiled_rules.py calls this code.
 *
 * In a decode of one sequence by a small model, some 60 operations on small tensors would take longer than the forward passes.
 * A distribution of the target is computed only up to the first rejection. Shapes: B rows, G drafted tokens, T = G + 1
 * positions, V tokens. P is V rounded up to a multiple of LANES: the weights of a row end with zeros.
 */
#include "simd.h"

#define DRAW_BLOCK 256 /* a multiple of LANES: numbers that are summed in fp32; the sums of the blocks are added in fp64 */

typedef struct {
    int64_t rows, vocab_size, padded_size; /* B, V, P */
    int64_t uniform_stride;                /* from one row's uniform number to the next row's */
    double temperature;
    const float *logits;   /* (B, V) */
    const double *uniform; /* one for each row, in [0, 1) */
    float *q;              /* (B, P), written: the distribution; its padding is 0 */
    int64_t *tokens;       /* (B), written */
    double *sums;          /* (B), written: the sum of q, which is NaN or infinite where the logits are */
    int32_t threads;
} draw_args;

typedef struct {
    int64_t rows, drafted_size, vocab_size, padded_size; /* B, G, V, P */
    int64_t uniform_stride;                              /* between rows */
    double temperature;
    const float *logits;          /* (B, T, V) of the target */
    const float *const *q;        /* for each of G positions (B, P), as `draw_tokens` wrote it */
    const int64_t *tokens;        /* (B, G): drawn from q */
    const int64_t *drafted;       /* (B): how many of them count */
    const double *accept_uniform; /* G for each row, in [0, 1) */
    const double *next_uniform;   /* one for each row, in [0, 1) */
    int64_t *accepted;            /* (B), written: 0 .. drafted */
    int64_t *next;                /* (B), written: the token after them */
    double *sums;                 /* (B), written: the sum of the weights that it was drawn from */
    float *scratch;               /* (threads, 2, P) */
    int32_t threads;
} verify_args;

const field_layout draw_args_layout[] = {
    STRUCT(draw_args),
    FIELD(draw_args, rows),
    FIELD(draw_args, vocab_size),
    FIELD(draw_args, padded_size),
    FIELD(draw_args, uniform_stride),
    FIELD(draw_args, temperature),
    FIELD(draw_args, logits),
    FIELD(draw_args, uniform),
    FIELD(draw_args, q),
    FIELD(draw_args, tokens),
    FIELD(draw_args, sums),
    FIELD(draw_args, threads),
    END_OF_LAYOUT,
};
const field_layout verify_args_layout[] = {
    STRUCT(verify_args),
    FIELD(verify_args, rows),
    FIELD(verify_args, drafted_size),
    FIELD(verify_args, vocab_size),
    FIELD(verify_args, padded_size),
    FIELD(verify_args, uniform_stride),
    FIELD(verify_args, temperature),
    FIELD(verify_args, logits),
    FIELD(verify_args, q),
    FIELD(verify_args, tokens),
    FIELD(verify_args, drafted),
    FIELD(verify_args, accept_uniform),
    FIELD(verify_args, next_uniform),
    FIELD(verify_args, accepted),
    FIELD(verify_args, next),
    FIELD(verify_args, sums),
    FIELD(verify_args, scratch),
    FIELD(verify_args, threads),
    END_OF_LAYOUT,
};

/* LANES logits of a row; behind the end of the row -inf. */
static vector load_padded(const float *row, int64_t at, int64_t size) {
    if (at + LANES <= size) return load(row + at);
    float padded[LANES];
    for (int lane = 0; lane < LANES; lane++) padded[lane] = at + lane < size ? row[at + lane] : -INFINITY;
    return load(padded);
}

/* The sum of a block that begins at `begin`. */
static double sum_of_block(const float *weights, int64_t begin, int64_t size) {
    vector sum = {};
    for (int64_t at = begin; at < begin + DRAW_BLOCK && at < size; at += LANES) sum += load(weights + at);
    return sum_of_lanes(sum);
}

static double sum_of_weights(const float *weights, int64_t size) {
    double sum = 0;
    for (int64_t begin = 0; begin < size; begin += DRAW_BLOCK) sum += sum_of_block(weights, begin, size);
    return sum;
}

/* softmax(logits / temperature) into `p`, with zeros as padding. NaN and infinite logits make NaN. */
static void softmax(const float *logits, int64_t vocab_size, int64_t padded_size, float temperature, float *p) {
    vector highest = broadcast(-INFINITY);
    for (int64_t at = 0; at < vocab_size; at += LANES) highest = max_vector(load_padded(logits, at, vocab_size), highest);
    float most = max_of_lanes(highest);
    for (int64_t at = 0; at < padded_size; at += LANES) {
        vector below = (load_padded(logits, at, vocab_size) - most) / temperature;
        store(p + at, blend(below < -87.0f, (vector){}, exp_vector(below))); /* exp_vector of less is not 0 */
    }
    float sum = (float)sum_of_weights(p, padded_size);
    for (int64_t at = 0; at < padded_size; at += LANES) store(p + at, load(p + at) / sum);
}

/* The token at which the cumulative sum of the weights exceeds `uniform` times their sum, which is written to `sum`. A token of
 * weight 0 is never drawn. */
static int64_t draw(const float *weights, int64_t vocab_size, int64_t padded_size, double uniform, double *sum) {
    double total = *sum = sum_of_weights(weights, padded_size), at = uniform * total, before = 0;
    if (at >= total) at = nextafter(total, 0);
    int64_t last = vocab_size - 1; /* stays so for NaN, which the caller finds in the sum */
    for (int64_t begin = 0; begin < padded_size; begin += DRAW_BLOCK) {
        double block = sum_of_block(weights, begin, padded_size);
        if (before + block > at) {
            for (int64_t token = begin; token < begin + DRAW_BLOCK && token < vocab_size; token++) {
                if (weights[token] > 0) {
                    before += weights[token], last = token;
                    if (before > at) return token;
                }
            }
            return last; /* added one by one, the block's weights are less than their sum: rounding */
        }
        before += block;
    }
    return last;
}

void draw_tokens(const draw_args *a) {
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int64_t row = 0; row < a->rows; row++) {
        float *q = a->q + row * a->padded_size;
        softmax(a->logits + row * a->vocab_size, a->vocab_size, a->padded_size, (float)a->temperature, q);
        a->tokens[row] = draw(q, a->vocab_size, a->padded_size, a->uniform[row * a->uniform_stride], a->sums + row);
    }
}

/* (p - q)+, in `left`. Returns p where rounding leaves no mass. */
static const float *residual(const float *p, const float *q, int64_t padded_size, float *left) {
    vector any = {};
    for (int64_t at = 0; at < padded_size; at += LANES) {
        vector difference = load(p + at) - load(q + at);
        difference = blend(difference < 0, (vector){}, difference); /* NaN stays */
        store(left + at, difference);
        any += difference;
    }
    return sum_of_lanes(any) == 0 ? p : left;
}

void verify_tokens(const verify_args *a) {
    int64_t gamma = a->drafted_size, vocab_size = a->vocab_size, padded = a->padded_size;
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int64_t row = 0; row < a->rows; row++) {
        float *p = a->scratch + omp_get_thread_num() * 2 * padded, *left = p + padded;
        const float *logits = a->logits + row * (gamma + 1) * vocab_size, *weights = p;
        int64_t accepted = 0;
        for (;; accepted++) {
            softmax(logits + accepted * vocab_size, vocab_size, padded, (float)a->temperature, p);
            if (accepted == a->drafted[row]) break;
            const float *q = a->q[accepted] + row * padded;
            int64_t token = a->tokens[row * gamma + accepted];
            float most = p[token] > 0 ? p[token] / q[token] : p[token]; /* NaN stays */
            if (!(a->accept_uniform[row * a->uniform_stride + accepted] < most)) {
                weights = residual(p, q, padded, left);
                break;
            }
        }
        a->accepted[row] = accepted;
        a->next[row] = draw(weights, vocab_size, padded, a->next_uniform[row * a->uniform_stride], a->sums + row);
    }
}
