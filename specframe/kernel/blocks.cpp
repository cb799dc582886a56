// Blocks of a decoder on a CPU in one call: products over packed weights, attention over our caches.
//
// Between two products of a small pass there is less work than calling an operation from Python
// takes, so a whole range of blocks is one call. Every row is computed by the same operations in
// the same order, however many rows there are and whatever lies between its ancestors' keys (whose
// slots ascend from root to leaf). So a verify pass of a tree gives bit for bit the logits that
// plain decoding gives, and so does a prefill.

#include "attention.h"

static void add(float *x, const float *y, long n) {
  for (long i = 0; i < n; i++) x[i] += y[i];
}

// Parts of the scratch memory of a pass.
struct Room {
  float *normed, *query, *key, *value, *mixed, *gate, *up, *heads;
};

// Divides the scratch memory, each part on a border of a vector.
static Room divide(const Pass &p) {
  Room room;
  float *at = p.scratch;
  auto take = [&](long n) {
    float *here = at;
    at += (n + LANES - 1) / LANES * LANES;
    return here;
  };
  room.normed = take(p.rows * p.hidden);
  room.query = take(p.rows * p.heads * p.size);
  room.key = take(p.rows * p.kv_heads * p.size);
  room.value = take(p.rows * p.kv_heads * p.size);
  room.mixed = take(p.rows * p.heads * p.size);
  room.gate = take(p.rows * p.inner);
  room.up = take(p.rows * p.inner);
  room.heads = take(p.kv_heads * head_floats(p));
  return room;
}

// Prepares the queries and keys of a lane's rows, and writes keys and values into its memory.
static void write_keys(const Pass &p, long layer, long lane, const Room &room) {
  const Block &block = p.blocks[layer];
  long place = layer * p.lanes + lane;
  for (long r = p.starts[lane]; r < p.starts[lane + 1]; r++) {
    prepare_heads(p, room.query, block.query_norm, p.heads, r);
    prepare_heads(p, room.key, block.key_norm, p.kv_heads, r);
    for (long h = 0; h < p.kv_heads; h++) {
      long to = (h * p.capacity[place] + p.slots[r]) * p.size, from = (r * p.kv_heads + h) * p.size;
      memcpy(p.keys[place] + to, room.key + from, 4 * p.size);
      memcpy(p.values[place] + to, room.value + from, 4 * p.size);
    }
  }
}

// Norm, queries, keys and values, attention, and the output added to the residual stream.
static void attention(const Pass &p, long layer, const Room &room) {
  const Block &block = p.blocks[layer];
  long wide = p.heads * p.size, narrow = p.kv_heads * p.size;
  for (long r = 0; r < p.rows; r++)
    normalise(p.stream + r * p.hidden, block.norm, room.normed + r * p.hidden, p.hidden, p.eps);
  multiply(block.query, room.normed, room.query, wide, p.rows, p.threads);
  multiply(block.key, room.normed, room.key, narrow, p.rows, p.threads);
  multiply(block.value, room.normed, room.value, narrow, p.rows, p.threads);
  for (long lane = 0; lane < p.lanes; lane++) write_keys(p, layer, lane, room);
#pragma omp parallel for schedule(static) num_threads(p.threads) if (p.threads > 1)
  for (long kv = 0; kv < p.kv_heads; kv++)
    for (long lane = 0; lane < p.lanes; lane++)
      attention_head(p, layer, lane, kv, room.query, room.mixed, room.heads + kv * head_floats(p));
  multiply(block.out, room.mixed, room.normed, p.hidden, p.rows, p.threads);
  add(p.stream, room.normed, p.rows * p.hidden);
}

// Norm, gated SiLU, and the output added to the residual stream.
static void feed_forward(const Pass &p, const Block &block, const Room &room) {
  for (long r = 0; r < p.rows; r++)
    normalise(p.stream + r * p.hidden, block.mlp_norm, room.normed + r * p.hidden, p.hidden, p.eps);
  multiply(block.gate, room.normed, room.gate, p.inner, p.rows, p.threads);
  multiply(block.up, room.normed, room.up, p.inner, p.rows, p.threads);
  for (long i = 0; i < p.rows * p.inner; i += LANES) {
    vec x = load(room.gate + i);
    store(room.gate + i, x / (1.0f + exponential(-x)) * load(room.up + i));
  }
  multiply(block.down, room.gate, room.normed, p.hidden, p.rows, p.threads);
  add(p.stream, room.normed, p.rows * p.hidden);
}

extern "C" {
// Output columns of a panel on the machine that compiled this.
long panel_columns() { return PANEL; }

// Floats of scratch memory that a pass needs.
long scratch_floats(const Pass *p) {
  long rows = p->rows * (p->hidden + 2 * (p->heads + p->kv_heads) * p->size + 2 * p->inner);
  return rows + p->kv_heads * head_floats(*p) + 8 * LANES;
}

// Copies weight [columns, k] into panels [ceil(columns / PANEL), k, PANEL], or `back` out of them.
void pack(void *weight, void *panels, long columns, long k, long bytes, int back) {
  if (bytes == 1)
    relay((int8_t *)weight, (int8_t *)panels, columns, k, back);
  else if (bytes == 2)
    relay((uint16_t *)weight, (uint16_t *)panels, columns, k, back);
  else
    relay((float *)weight, (float *)panels, columns, k, back);
}

// y [rows, columns] = x [rows, k] times the transposed weight, plus bias.
void linear(const Matrix *w, const float *x, float *y, long rows, long threads) {
  multiply(*w, x, y, w->columns, rows, threads);
}

// Runs blocks [first, last) over the residual stream, in place.
void run(const Pass *pass) {
  const Pass &p = *pass;
  find_seen(p);
  Room room = divide(p);
  for (long layer = p.first; layer < p.last; layer++) {
    if (p.taps[layer]) memcpy(p.taps[layer], p.stream, 4 * p.rows * p.hidden);
    if (!p.skip[2 * layer]) attention(p, layer, room);
    if (!p.skip[2 * layer + 1]) feed_forward(p, p.blocks[layer], room);
  }
  if (p.taps[p.last]) memcpy(p.taps[p.last], p.stream, 4 * p.rows * p.hidden);
}
}
