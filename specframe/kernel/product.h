// Products of few rows with packed weights.
//
// Layout. A weight [columns, k] lies in panels of PANEL = 2 * LANES output columns:
// [columns / PANEL][k][PANEL], the last panel padded with zero columns. For each step of k a panel
// holds the PANEL weights that one input element meets, next to each other: two vector loads, no
// gather and no horizontal sum. So a weight streams from memory exactly once, in the order in which
// it lies there, while up to MAX_ROWS rows keep their sums (two vectors each) in registers; a pass
// over a small tree costs little more than one over a single row. This is the packing of Goto and
// van de Geijn, Anatomy of high-performance matrix multiplication (2008), done once, when a model
// is loaded, since weights never change.
//
// Order of sums. Every output is the sum over k from the first element to the last, in one
// accumulator, whatever the number of rows. Splitting k among accumulators or threads would be
// another rounding for each number of rows; as it is, a row's result does not depend on the rows
// beside it, and a verify pass gives the very logits that plain decoding gives.
#pragma once

#include "vectors.h"

extern "C" struct Matrix {
  const void *panels;   // elements of `bytes`: float32, bfloat16 (its upper half), or int8
  const float *scales;  // [columns] for int8, else null
  const float *bias;    // [columns] or null
  long columns, k, bytes;
};

// One vector of weights, widened to float32.
static inline vec weights(const float *p) { return load(p); }
static inline vec weights(const uint16_t *p) {
  return (vec)(__builtin_convertvector(*(const hvec *)p, ivec) << 16);
}
// By hand, since compilers widen bytes one by one where they are left to themselves.
static inline vec weights(const int8_t *p) {
#if defined(__AVX512F__)
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
  return __builtin_convertvector(__builtin_convertvector(*(const bvec *)p, ivec), vec);
#endif
}

// y [M, PANEL] = x [M, k] times one panel. `next` is where the weights to come are prefetched; it
// moves on by one step of k for every `step` steps that are computed.
template <int M, typename W>
static void product(const W *panel, const W *next, long step, const float *x, long ldx, float *y,
                    long ldy, long k) {
  vec low[M], high[M];
  for (int m = 0; m < M; m++) low[m] = high[m] = vec{};
  for (long i = 0; i < k;) {
    long stop = std::min(i + step, k);
    __builtin_prefetch(next);
    __builtin_prefetch(next + LANES);
    next += PANEL;
    for (; i < stop; i++) {
      vec a = weights(panel + PANEL * i), b = weights(panel + PANEL * i + LANES);
#pragma GCC unroll 14
      for (int m = 0; m < M; m++) {
        float s = x[m * ldx + i];
        low[m] += s * a;
        high[m] += s * b;
      }
    }
  }
  for (int m = 0; m < M; m++) {
    store(y + m * ldy, low[m]);
    store(y + m * ldy + LANES, high[m]);
  }
}

template <typename W>
using Product = void (*)(const W *, const W *, long, const float *, long, float *, long, long);
template <typename W, int M>
constexpr Product<W> at() {
  if constexpr (M <= MAX_ROWS) return product<M, W>;
  return nullptr;
}
template <typename W>
static const Product<W> PRODUCTS[] = {
    nullptr,     at<W, 1>(),  at<W, 2>(),  at<W, 3>(),  at<W, 4>(),  at<W, 5>(),  at<W, 6>(), at<W, 7>(),
    at<W, 8>(),  at<W, 9>(),  at<W, 10>(), at<W, 11>(), at<W, 12>(), at<W, 13>(), at<W, 14>()};

// y [rows, PANEL] of one panel. More than MAX_ROWS rows go in blocks of nearly equal size. A single
// block prefetches its own panel AHEAD steps further on; several blocks read it from the cache and
// share the prefetching of the panel after it.
template <typename W>
static void panel_rows(const W *panel, const float *x, float *y, long ldy, long rows, long k) {
  long blocks = (rows + MAX_ROWS - 1) / MAX_ROWS, each = (rows + blocks - 1) / blocks;
  for (long row = 0, block = 0; row < rows; row += each, block++) {
    const W *next = panel + PANEL * (blocks == 1 ? AHEAD : k + block * k / blocks);
    PRODUCTS<W>[std::min(each, rows - row)](panel, next, blocks, x + row * k, k, y + row * ldy, ldy,
                                            k);
  }
}

// The columns of one panel. Where the last columns do not fill it, the product goes through a small
// buffer, so that nothing is written behind a row.
template <typename W>
static void panel_product(const Matrix &w, long column, const float *x, float *y, long ldy,
                          long rows) {
  const W *panel = (const W *)w.panels + column * w.k;
  long real = std::min<long>(PANEL, w.columns - column);
  if (real == PANEL) {
    panel_rows(panel, x, y + column, ldy, rows, w.k);
  } else {
    float whole[ROW_BLOCK * PANEL];
    panel_rows(panel, x, whole, PANEL, rows, w.k);
    for (long r = 0; r < rows; r++) memcpy(y + r * ldy + column, whole + r * PANEL, 4 * real);
  }
  if (w.scales)
    for (long r = 0; r < rows; r++)
      for (long c = 0; c < real; c++) y[r * ldy + column + c] *= w.scales[column + c];
  if (w.bias)
    for (long r = 0; r < rows; r++)
      for (long c = 0; c < real; c++) y[r * ldy + column + c] += w.bias[column + c];
}

// y [rows, columns] (rows ldy apart) = x [rows, k] times the transposed matrix, plus bias.
static void multiply(const Matrix &w, const float *x, float *y, long ldy, long rows, long threads) {
  for (long from = 0; from < rows; from += ROW_BLOCK) {
    long some = std::min(ROW_BLOCK, rows - from);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long column = 0; column < w.columns; column += PANEL)
      if (w.bytes == 1)
        panel_product<int8_t>(w, column, x + from * w.k, y + from * ldy, ldy, some);
      else if (w.bytes == 2)
        panel_product<uint16_t>(w, column, x + from * w.k, y + from * ldy, ldy, some);
      else
        panel_product<float>(w, column, x + from * w.k, y + from * ldy, ldy, some);
  }
}

// Copies a weight [columns, k] into its panels, or `back` out of them.
template <typename W>
static void relay(W *weight, W *panels, long columns, long k, bool back) {
  for (long column = 0; column < columns; column++)
    for (long i = 0; i < k; i++) {
      W *packed = panels + column / PANEL * PANEL * k + i * PANEL + column % PANEL;
      if (back)
        weight[column * k + i] = *packed;
      else
        *packed = weight[column * k + i];
    }
}
