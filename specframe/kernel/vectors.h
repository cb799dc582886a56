// The widest vectors of the machine that compiles this, and e^x over them.
//
// LANES floats are a vector. MAX_ROWS rows of two vectors are summed in registers at once: as many
// as leave room for two vectors of weights and one input.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, MAX_ROWS = 14;  // 28 accumulators of 32 registers
#elif defined(__AVX__)
constexpr int LANES = 8, MAX_ROWS = 6;  // 12 of 16
#elif defined(__aarch64__)
constexpr int LANES = 4, MAX_ROWS = 14;
#else
constexpr int LANES = 4, MAX_ROWS = 6;
#endif
constexpr int PANEL = 2 * LANES;
constexpr long ROW_BLOCK = 14 * MAX_ROWS;  // rows whose inputs stay in the second-level cache
constexpr long AHEAD = 64;                 // steps of k that the stream of weights is fetched ahead

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef int8_t bvec __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
// The sum of a vector's elements, first to last.
static inline float total(vec v) {
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += v[i];
  return sum;
}

// e^x within 2 units in the last place; 0 below -87, and at most e^88, which a float can hold.
static inline vec exponential(vec x) {
  x = x < 88.0f ? x : x - x + 88.0f;
  vec n = x * 1.44269504f + 12582912.0f;  // rounds to an integer in the low bits
  ivec whole = (ivec)n << 23;
  n -= 12582912.0f;
  vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  vec scaled = (vec)((ivec)p + whole);
  ivec kept = x > -87.0f;
  return (vec)((ivec)scaled & kept);
}
