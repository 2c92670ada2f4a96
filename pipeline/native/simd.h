/* Vectors of LANES numbers for the C sources of this folder, written for the compiler's vector extensions: the same source
 * builds for AVX2, AVX-512 and NEON. A vector is as wide as a register of the processor: gcc keeps wider ones in memory. With
 * -DBF16 a `weight` is bfloat16, otherwise fp32. All sums are fp32.
 */
#ifndef SIMD_H
#define SIMD_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num(void) { return 0; }
#endif
#if defined __AVX512F__ || defined __AMX_BF16__
#include <immintrin.h>
#endif

#ifndef LANES /* tests set it */
#if defined __AVX512F__
#define LANES 16
#elif defined __AVX__
#define LANES 8
#else
#define LANES 4
#endif
#endif
#if LANES == 16
#define EACH_LANE 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#elif LANES == 8
#define EACH_LANE 0, 1, 2, 3, 4, 5, 6, 7
#else
#define EACH_LANE 0, 1, 2, 3
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))
typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float unaligned_vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t int_vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t uint_vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t unaligned_uint_vector __attribute__((vector_size(4 * LANES), aligned(2), may_alias));

static inline vector load(const float *from) { return *(const unaligned_vector *)from; }
static inline void store(float *to, vector value) { *(unaligned_vector *)to = value; }
static inline vector broadcast(float value) { return (vector){} + value; }

/* `yes` in the lanes where `test` is true (all bits set), `no` in the others. */
static inline vector blend(int_vector test, vector yes, vector no) {
    return (vector)((test & (int_vector)yes) | (~test & (int_vector)no));
}

static inline vector max_vector(vector a, vector b) { return blend(a > b, a, b); }

static inline float max_of_lanes(vector value) {
    float lanes[LANES], highest = -INFINITY;
    store(lanes, value);
    for (int lane = 0; lane < LANES; lane++) highest = lanes[lane] > highest ? lanes[lane] : highest;
    return highest;
}

static inline float sum_of_lanes(vector value) {
    float part[LANES];
    store(part, value);
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) part[lane] += part[lane + width];
    return part[0];
}

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (int_vector){__VA_ARGS__})
#endif

/* The sums of LANES vectors, one a lane, each in the order of sum_of_lanes. */
static inline vector sums_of_lanes(const vector *parts) {
#if LANES == 16
    vector by8[8], by4[4], by2[2];
    for (int n = 0; n < 8; n++)
        by8[n] = SHUFFLE(parts[n], parts[n + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                 SHUFFLE(parts[n], parts[n + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int n = 0; n < 4; n++)
        by4[n] = SHUFFLE(by8[n], by8[n + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
                 SHUFFLE(by8[n], by8[n + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int n = 0; n < 2; n++)
        by2[n] = SHUFFLE(by4[n], by4[n + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                 SHUFFLE(by4[n], by4[n + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    return SHUFFLE(by2[0], by2[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           SHUFFLE(by2[0], by2[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
#elif LANES == 8
    vector by4[4], by2[2];
    for (int n = 0; n < 4; n++)
        by4[n] = SHUFFLE(parts[n], parts[n + 4], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(parts[n], parts[n + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int n = 0; n < 2; n++)
        by2[n] = SHUFFLE(by4[n], by4[n + 2], 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(by4[n], by4[n + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLE(by2[0], by2[1], 0, 8, 2, 10, 4, 12, 6, 14) + SHUFFLE(by2[0], by2[1], 1, 9, 3, 11, 5, 13, 7, 15);
#else
    vector by2[2];
    for (int n = 0; n < 2; n++) by2[n] = SHUFFLE(parts[n], parts[n + 2], 0, 1, 4, 5) + SHUFFLE(parts[n], parts[n + 2], 2, 3, 6, 7);
    return SHUFFLE(by2[0], by2[1], 0, 4, 2, 6) + SHUFFLE(by2[0], by2[1], 1, 5, 3, 7);
#endif
}

/* exp(x) with a relative error of 1e-7: a polynomial around the nearest power of two (Cephes, expf). */
static inline vector exp_vector(vector x) {
    x = blend(x < -87.0f, broadcast(-87.0f), x);
    x = blend(x > 88.0f, broadcast(88.0f), x);
    vector shifted = x * 1.44269504088896341f + 12582912.0f; /* the low bits of the sum are the nearest integer */
    vector power = shifted - 12582912.0f;
    vector rest = x - power * 0.693359375f + power * 2.12194440e-4f;
    vector sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return sum * (vector)(((int_vector)shifted << 23) + (127 << 23));
}

#ifdef BF16
typedef uint16_t weight;
typedef uint16_t bf16_vector __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
static inline vector load_weights(const weight *from) {
    return (vector)(__builtin_convertvector(*(const bf16_vector *)from, uint_vector) << 16);
}
static inline void store_weights(weight *to, vector value) { /* rounds to nearest, ties to even; NaN stays NaN */
    uint_vector raw = (uint_vector)value, rounded = (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
    int_vector is_number = value == value;
    rounded = ((uint_vector)is_number & rounded) | (~(uint_vector)is_number & 0x7fc0);
    *(bf16_vector *)to = __builtin_convertvector(rounded, bf16_vector);
}
static inline float weight_to_float(weight value) {
    uint32_t raw = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &raw, sizeof wide);
    return wide;
}
#else
typedef float weight;
static inline vector load_weights(const weight *from) { return load(from); }
static inline void store_weights(weight *to, vector value) { store(to, value); }
static inline float weight_to_float(weight value) { return value; }
#endif

/* What this build uses, for people. */
#if defined __AVX512F__
#define VECTOR_UNITS "AVX-512"
#elif defined __AVX2__
#define VECTOR_UNITS "AVX2"
#elif defined __ARM_NEON
#define VECTOR_UNITS "NEON"
#else
#define VECTOR_UNITS "baseline vectors"
#endif
#if defined BF16 && defined __AMX_BF16__
#define BF16_UNITS ", AMX tiles (bf16)"
#elif defined BF16 && defined __AVX512BF16__
#define BF16_UNITS ", AVX512-BF16"
#else
#define BF16_UNITS ""
#endif

/* The fields of a struct that Python declares too, exported as NAME_layout: the name and size of the struct, then name,
 * offset and size of each field, then a null name. build.py compares them. */
typedef struct {
    const char *name;
    int64_t offset, size;
} field_layout;
#define STRUCT(type) {#type, 0, sizeof(type)}
#define FIELD(type, field) {#field, offsetof(type, field), sizeof(((type *)0)->field)}
#define END_OF_LAYOUT {0, 0, 0}
#endif
