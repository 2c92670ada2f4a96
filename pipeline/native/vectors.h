/* Numbers in whole vectors of LANES, for the C sources here. With -DBF16 a `weight` is bfloat16, else fp32; sums are fp32. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t whole __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));

static inline vector load(const float *from) { return *(const loose *)from; }
static inline void store(float *to, vector value) { *(loose *)to = value; }
static inline vector all(float value) { return (vector){} + value; }
static inline vector either(whole test, vector yes, vector no) { return (vector)((test & (whole)yes) | (~test & (whole)no)); }

static inline float total(vector value) {
    float part[LANES];
    store(part, value);
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) part[lane] += part[lane + width];
    return part[0];
}

/* e to the power of x to one part in 1e7: a polynomial about the nearest power of two (Cephes, expf). */
static inline vector exponential(vector x) {
    x = either(x < -87.0f, all(-87.0f), x);
    x = either(x > 88.0f, all(88.0f), x);
    vector shifted = x * 1.44269504088896341f + 12582912.0f; /* the sum's low bits are the nearest whole number */
    vector power = shifted - 12582912.0f;
    vector rest = x - power * 0.693359375f + power * 2.12194440e-4f;
    vector sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return sum * (vector)(((whole)shifted << 23) + (127 << 23));
}

#ifdef BF16
typedef uint16_t weight;
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
static inline vector widen(const weight *from) {
    return (vector)(__builtin_convertvector(*(const halves *)from, bits) << 16);
}
static inline void narrow(weight *to, vector value) { /* to the nearest, ties to even */
    bits raw = (bits)value, rounded = (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
    whole number = value == value;
    rounded = ((bits)number & rounded) | (~(bits)number & 0x7fc0);
    *(halves *)to = __builtin_convertvector(rounded, halves);
}
static inline float widen_one(weight value) {
    uint32_t raw = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &raw, sizeof wide);
    return wide;
}
#else
typedef float weight;
static inline vector widen(const weight *from) { return load(from); }
static inline void narrow(weight *to, vector value) { store(to, value); }
static inline float widen_one(weight value) { return value; }
#endif
