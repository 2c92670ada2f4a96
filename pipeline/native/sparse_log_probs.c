/* What a loss on stored distributions reads of a draft's logits, and the way back to them. selection.py says what is meant.
 *
 * Two passes over each row while it is in the processor's cache, where whole tensors would go to memory and back a dozen times.
 * Built for one dtype of the logits: fp32, or bf16 with -DBF16. Shapes: N rows, V tokens, K kept; all contiguous.
 */
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif
#include "vectors.h"

#define BLOCK 1024 /* summed in fp32; blocks are summed in fp64 */
static const float LEAST_MASS = 1e-30f;

typedef struct {
    int64_t rows, size, kept; /* N, V, K */
    const weight *logits;     /* (N, V) */
    const int64_t *ids;       /* (N, K), all different within a row */
    const int64_t *tokens;    /* (N): one more to be read */
    float *log_q;             /* (N, K) */
    float *token_log_q;       /* (N) */
    float *rest_q;            /* (N): mass of all that is not kept */
    float *log_sum;           /* (N): log of the sum of exponentials */
    float *scratch;           /* (threads, V up to whole vectors) */
    int threads;
} selection;

typedef struct {
    const float *kept, *token, *rest; /* (N, K), (N), (N): of the log masses */
    weight *logits;                   /* (N, V) */
} gradients;

static int64_t padded(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

/* A whole vector, or what is left of the row before -inf. */
static vector part(const weight *row, int64_t at, int64_t size) {
    if (at + LANES <= size) return widen(row + at);
    float rest[LANES];
    for (int lane = 0; lane < LANES; lane++) rest[lane] = at + lane < size ? widen_one(row[at + lane]) : -INFINITY;
    return load(rest);
}

/* 0 if all went well, 1 for an id that is not there. */
int forward(const selection *s) {
    for (int64_t n = 0; n < s->rows * s->kept; n++)
        if (s->ids[n] < 0 || s->ids[n] >= s->size) return 1;
    for (int64_t n = 0; n < s->rows; n++)
        if (s->tokens[n] < 0 || s->tokens[n] >= s->size) return 1;
#pragma omp parallel for schedule(static) num_threads(s->threads)
    for (int64_t n = 0; n < s->rows; n++) {
        const weight *row = s->logits + n * s->size;
        const int64_t *ids = s->ids + n * s->kept;
        float *mass = s->scratch + omp_get_thread_num() * padded(s->size), highest = -INFINITY, lanes[LANES];
        vector most = all(-INFINITY);
        for (int64_t at = 0; at < s->size; at += LANES) {
            vector x = part(row, at, s->size);
            most = either(x > most, x, most);
        }
        store(lanes, most);
        for (int lane = 0; lane < LANES; lane++) highest = lanes[lane] > highest ? lanes[lane] : highest;
        for (int64_t at = 0; at < s->size; at += LANES) store(mass + at, exponential(part(row, at, s->size) - highest));
        for (int64_t at = s->size; at < padded(s->size); at++) mass[at] = 0;
        double sum = 0, rest = 0;
        for (int64_t k = 0; k < s->kept; k++) sum += mass[ids[k]];
        /* Kept tokens are taken out before the sum: 1 - sum(q) of what is kept cancels to 0 or below in fp32. */
        for (int64_t k = 0; k < s->kept; k++) mass[ids[k]] = 0;
        for (int64_t begin = 0; begin < padded(s->size); begin += BLOCK) {
            vector block = {};
            for (int64_t at = begin; at < begin + BLOCK && at < padded(s->size); at += LANES) block += load(mass + at);
            rest += total(block);
        }
        sum += rest;
        float log_sum = s->log_sum[n] = highest + (float)log(sum);
        for (int64_t k = 0; k < s->kept; k++) s->log_q[n * s->kept + k] = widen_one(row[ids[k]]) - log_sum;
        s->token_log_q[n] = widen_one(row[s->tokens[n]]) - log_sum;
        s->rest_q[n] = (float)(rest / sum);
    }
    return 0;
}

/* d log q_k / d logit_i = [i = k] - q_i;  d log(rest) / d logit_i = [i not kept] q_i / rest - q_i. */
void backward(const selection *s, const gradients *g) {
#pragma omp parallel for schedule(static) num_threads(s->threads)
    for (int64_t n = 0; n < s->rows; n++) {
        const weight *row = s->logits + n * s->size;
        float *slope = s->scratch + omp_get_thread_num() * padded(s->size), sum = g->token[n] + g->rest[n];
        for (int64_t k = 0; k < s->kept; k++) sum += g->kept[n * s->kept + k];
        float rest = s->rest_q[n] > LEAST_MASS ? s->rest_q[n] : LEAST_MASS, share = g->rest[n] / rest - sum;
        for (int64_t at = 0; at < s->size; at += LANES)
            store(slope + at, exponential(part(row, at, s->size) - s->log_sum[n]) * share);
        for (int64_t k = 0; k < s->kept; k++) {
            int64_t place = n * s->kept + k;
            slope[s->ids[place]] = g->kept[place] - expf(s->log_q[place]) * sum;
        }
        slope[s->tokens[n]] += g->token[n];
        weight *to = g->logits + n * s->size, last[LANES];
        int64_t whole_vectors = s->size / LANES * LANES;
        for (int64_t at = 0; at < whole_vectors; at += LANES) narrow(to + at, load(slope + at));
        narrow(last, load(slope + padded(s->size) - LANES));
        for (int64_t at = whole_vectors; at < s->size; at++) to[at] = last[at - whole_vectors];
    }
}
