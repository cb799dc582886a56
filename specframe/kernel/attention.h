// Attention of the rows of a pass over cached keys, each row over just the slots that it sees.
//
// A row's slots are walked in ascending order, and hidden ones are left out before anything is
// summed (rather than masked to minus infinity). So a node of a tree adds the same numbers in the
// same order as its token does on a chain, and computes the same bits. Each lane's rows look at the
// memory of that lane alone, so company changes no bit either. Scores take a vector of
// LANES keys at a time, from keys that were transposed into tiles; query heads that share keys are
// computed together, so each key and value is loaded once for up to TOGETHER heads.
#pragma once

#include "product.h"

extern "C" {
struct Block {
  const float *norm, *mlp_norm, *query_norm, *key_norm;  // the last two [size] or null
  Matrix query, key, value, out, gate, up, down;
};

struct Pass {
  const Block *blocks;
  long first, last, rows, hidden, heads, kv_heads, size, inner;
  float eps, scale;
  float *stream;            // [rows, hidden], in place
  const float *cos, *sin;   // [rows, size]
  const int64_t *slots;     // [rows]: of the memory of the row's own lane
  long lanes, widest;       // widest: the largest of `width`
  const long *starts;       // [lanes + 1]: the rows of lane b are starts[b] .. starts[b + 1] - 1
  const long *width;        // [lanes]
  const uint8_t **visible;  // a lane: [its rows, its width]
  float **keys, **values;   // [layers, lanes]: [kv_heads, capacity, size]
  const long *capacity;     // [layers, lanes]
  const uint8_t *skip;      // [2 * layers]: attention, mlp of each
  float **taps;             // [layers + 1]: what enters a layer, [rows, hidden], or null
  float *scratch;           // see scratch_floats
  int32_t *seen;            // [rows, widest + 2]: count, prefix and slots that a row sees
  long threads;
};
}

// Root mean square norm of n floats.
static void normalise(const float *x, const float *weight, float *y, long n, float eps) {
  vec sum{};
  for (long i = 0; i < n; i += LANES) sum += load(x + i) * load(x + i);
  float inverse = 1.0f / std::sqrt(total(sum) / n + eps);
  for (long i = 0; i < n; i += LANES) store(y + i, load(weight + i) * (load(x + i) * inverse));
}

// Rotary position embedding. The halves of a head are rotated against each other, which is how the
// weights of Llama's models are stored.
static void rotate(float *x, const float *cos, const float *sin, long size) {
  long half = size / 2;
  for (long i = 0; i < half; i++) {
    float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i + half] + a * sin[i + half];
  }
}

// The heads of one row of queries or keys: normed where the model does so, then rotated.
static void prepare_heads(const Pass &p, float *x, const float *norm, long heads, long row) {
  for (long h = 0; h < heads; h++) {
    float *head = x + (row * heads + h) * p.size;
    if (norm) normalise(head, norm, head, p.size, p.eps);
    rotate(head, p.cos + row * p.size, p.sin + row * p.size, p.size);
  }
}

// Keys [slots, size] as tiles [tiles][size][LANES]: the scores of LANES keys are then one vector,
// and no sum goes across a vector.
static void transpose(const float *keys, float *tiles, long slots, long size) {
  for (long tile = 0; tile * LANES < slots; tile++) {
    float *out = tiles + tile * size * LANES;
    long held = std::min<long>(LANES, slots - tile * LANES);
    for (long s = 0; s < held; s++)
      for (long d = 0; d < size; d++) out[d * LANES + s] = keys[(tile * LANES + s) * size + d];
    for (long s = held; s < LANES; s++)
      for (long d = 0; d < size; d++) out[d * LANES + s] = 0;
  }
}

// The slots that a row sees, in order; the first `prefix` of them are 0, 1, 2 ...
struct Seen {
  const int32_t *slots;
  long count, prefix;
};

// What `find_seen` wrote for a row.
static Seen seen_by(const Pass &p, long row) {
  const int32_t *held = p.seen + row * (p.widest + 2);
  return {held + 2, held[0], held[1]};
}

// Turns the masks of a pass into a list of slots a row: count, length of the prefix, slots.
static void find_seen(const Pass &p) {
  for (long b = 0; b < p.lanes; b++) {
    const uint8_t *visible = p.visible[b];
    for (long r = p.starts[b]; r < p.starts[b + 1]; r++, visible += p.width[b]) {
      int32_t *held = p.seen + r * (p.widest + 2), count = 0, prefix = 0;
      for (long s = 0; s < p.width[b]; s++)
        if (visible[s]) {
          prefix += prefix == s;
          held[2 + count++] = (int32_t)s;
        }
      held[0] = count;
      held[1] = prefix;
    }
  }
}

// Scores of T tiles of keys for H heads, whose scores lie `ld` floats apart. Each key is loaded
// once for all heads, and T * H independent sums run at once, which hides the latency of each addition.
template <int T, int H>
static void score(const float *query, const float *tiles, float *scores, long ld, long size,
                  float scale) {
  vec sum[H][T] = {};
  for (long d = 0; d < size; d++) {
    vec key[T];
    for (int t = 0; t < T; t++) key[t] = load(tiles + (t * size + d) * LANES);
    for (int h = 0; h < H; h++)
      for (int t = 0; t < T; t++) sum[h][t] += query[h * size + d] * key[t];
  }
  for (int h = 0; h < H; h++)
    for (int t = 0; t < T; t++) store(scores + h * ld + t * LANES, sum[h][t] * scale);
}

// Turns scores into exponentials of the slots that are seen, in their order, and returns the
// inverse of their sum. The scores of hidden slots are dropped first.
static float soften(float *scores, const Seen &seen) {
  long count = seen.count;
  for (long i = seen.prefix; i < count; i++) scores[i] = scores[seen.slots[i]];  // not yet read
  for (long i = count; i % LANES; i++) scores[i] = -INFINITY;
  vec most = load(scores);
  for (long i = LANES; i < count; i += LANES) {
    vec more = load(scores + i);
    most = more > most ? more : most;
  }
  float largest = most[0];
  for (int i = 1; i < LANES; i++) largest = std::max(largest, most[i]);
  vec sum{};
  for (long i = 0; i < count; i += LANES) {
    vec e = exponential(load(scores + i) - largest);
    store(scores + i, e);
    sum += e;
  }
  return 1.0f / total(sum);
}

// V vectors of the weighted values for H heads. Even and odd places have sums of their own, which
// hides the latency of the additions; the split does not depend on the number of rows.
template <int V, int H>
static void mix(const float *scores, long ld, const float *values, const Seen &seen, long size,
                const float *inverse, float *out) {
  vec even[H][V] = {}, odd[H][V] = {};
  for (long i = 0; i < seen.count; i += 2) {
    const float *a = values + seen.slots[i] * size;
    for (int v = 0; v < V; v++) {
      vec value = load(a + v * LANES);
      for (int h = 0; h < H; h++) even[h][v] += scores[h * ld + i] * value;
    }
    if (i + 1 == seen.count) break;
    const float *b = values + seen.slots[i + 1] * size;
    for (int v = 0; v < V; v++) {
      vec value = load(b + v * LANES);
      for (int h = 0; h < H; h++) odd[h][v] += scores[h * ld + i + 1] * value;
    }
  }
  for (int h = 0; h < H; h++)
    for (int v = 0; v < V; v++)
      store(out + h * size + v * LANES, (even[h][v] + odd[h][v]) * inverse[h]);
}

// H heads of one row: query and out [H, size], tiles and values of the keys that they share.
template <int H>
static void attend(const float *query, const float *tiles, const float *values, float *scores,
                   long ld, const Seen &seen, long size, float scale, float *out) {
  long tile = 0, stop = seen.slots[seen.count - 1] / LANES + 1;
  for (; tile + 4 <= stop; tile += 4)
    score<4, H>(query, tiles + tile * size * LANES, scores + tile * LANES, ld, size, scale);
  for (; tile < stop; tile++)
    score<1, H>(query, tiles + tile * size * LANES, scores + tile * LANES, ld, size, scale);
  float inverse[H];
  for (int h = 0; h < H; h++) inverse[h] = soften(scores + h * ld, seen);
  constexpr int WIDE = LANES == 4 ? 2 : 4;
  long d = 0;
  for (; d + WIDE * LANES <= size; d += WIDE * LANES)
    mix<WIDE, H>(scores, ld, values + d, seen, size, inverse, out + d);
  for (; d < size; d += LANES) mix<1, H>(scores, ld, values + d, seen, size, inverse, out + d);
}

constexpr long TOGETHER = 3;  // heads whose sums fit the registers
static long score_floats(const Pass &p) { return (p.widest + LANES) / LANES * LANES + LANES; }
static long head_floats(const Pass &p) { return score_floats(p) * (p.size + TOGETHER); }

// The rows of one lane, and one group of query heads, over the keys that the group shares.
static void attention_head(const Pass &p, long layer, long lane, long kv, const float *query,
                           float *out, float *room) {
  long ld = score_floats(p), group = p.heads / p.kv_heads, used = 0, place = layer * p.lanes + lane;
  float *tiles = room, *scores = room + ld * p.size;
  const float *keys = p.keys[place] + kv * p.capacity[place] * p.size;
  const float *values = p.values[place] + kv * p.capacity[place] * p.size;
  for (long r = p.starts[lane]; r < p.starts[lane + 1]; r++) {
    Seen seen = seen_by(p, r);
    used = std::max<long>(used, seen.slots[seen.count - 1] + 1);
  }
  transpose(keys, tiles, used, p.size);
  for (long r = p.starts[lane]; r < p.starts[lane + 1]; r++) {
    Seen seen = seen_by(p, r);
    for (long h = 0; h < group; h += TOGETHER) {
      long at = (r * p.heads + kv * group + h) * p.size, some = std::min(TOGETHER, group - h);
      auto run = some == 3 ? attend<3> : some == 2 ? attend<2> : attend<1>;
      run(query + at, tiles, values, scores, ld, seen, p.size, p.scale, out + at);
    }
  }
}
