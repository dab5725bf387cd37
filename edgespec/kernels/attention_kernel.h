// Attention over a cache, a few query rows at a time. Included behind tile_kernel.h, once per
// instruction set.
//
// Keys are visited in steps of 64 positions, counted from the beginning of the cache, with a running
// maximum and sum (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"); spans of
// 512 positions are summed up apart, so that cores can share a long context, and joined in order
// (Dao et al. 2023, "Flash-Decoding"). What a row sees and in which order does not depend on the other
// rows of the pass: its output is bitwise the same alone and among others. (Values are taken to be finite: a
// value that a row does not see has a weight of 0 for it.)

#include <cmath>
#include <limits>

namespace edgespec {
namespace EDGESPEC_ISA {

constexpr int kStep = 64;
constexpr int kRowBlock = 6;  // query rows that share what is loaded of keys and values
constexpr float kNothing = -std::numeric_limits<float>::infinity();

inline F load_cached(const float* p) { return Simd::load_floats(p); }
inline F load_cached(const half* p) { return Simd::from_half(p); }

// e^x for x <= 0, to about 1e-7; exactly 0 below -87. What is not a number stays so.
inline F exponential(F x) {
  constexpr float kMagic = 12582912.0f, kLeast = -87.0f;  // 1.5 · 2^23 leaves an integer in the low bits
  F clamped = Simd::max(Simd::set1(kLeast), x);
  F shifted = Simd::fma(clamped, Simd::set1(1.44269504f), Simd::set1(kMagic));  // x / ln 2, rounded
  F n = Simd::add(shifted, Simd::set1(-kMagic));
  F rest = Simd::fma(n, Simd::set1(-0.693359375f), clamped);  // ln 2 in two parts
  rest = Simd::fma(n, Simd::set1(2.12194440e-4f), rest);
  F y = Simd::set1(1.9875691500e-4f);  // the polynomial of Cephes' expf
  constexpr float kFactors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                5.0000001201e-1f};
  for (float c : kFactors) y = Simd::fma(y, rest, Simd::set1(c));
  y = Simd::add(Simd::fma(Simd::mul(rest, rest), y, rest), Simd::set1(1.0f));
  I scaled = Simd::add(Simd::as_bits(y), Simd::template shift_left<23>(Simd::as_bits(shifted)));
  return Simd::zero_where_below(Simd::as_floats(scaled), x, kLeast);
}

inline float largest_of(const float* x) {  // kStep values
  F largest = Simd::load_floats(x);
  for (int i = Simd::kLanes; i < kStep; i += Simd::kLanes)
    largest = Simd::max(largest, Simd::load_floats(x + i));
  float lanes[Simd::kLanes];
  Simd::store(lanes, largest);
  float most = lanes[0];
  for (float lane : lanes) most = larger(most, lane);
  return most;
}

// weights = e^(scores − largest), in place; their sum.
inline float weigh(float* scores, float largest) {
  F sum = Simd::zero(), less = Simd::set1(-largest);
  for (int i = 0; i < kStep; i += Simd::kLanes) {
    F w = exponential(Simd::add(Simd::load_floats(scores + i), less));
    Simd::store(scores + i, w);
    sum = Simd::add(sum, w);
  }
  float lanes[Simd::kLanes], total = 0;
  Simd::store(lanes, sum);
  for (float lane : lanes) total += lane;
  return total;
}

// sums[r][v] += x[v] · factors[r] for each of `n` elements: x[v] are kVectors_ registers `apart` from each
// other in memory, `step` behind those of the element before; factors[r] are `stride` behind each other.
// Meanwhile what lies from `ahead` on is fetched, `lines` cache lines per element.
template <int kRows_, int kVectors_, class T>
inline void accumulate(F (*sums)[kVectors_], int64_t n, const T* const* x, int64_t step, const float* factors,
                       int64_t stride, const void* ahead, int lines) {
  const char* line = static_cast<const char*>(ahead);
  for (int64_t i = 0; i < n; i++) {
    for (int l = 0; l < lines; l++, line += kLine) __builtin_prefetch(line);
    F loaded[kVectors_];
    EDGESPEC_UNROLL
    for (int v = 0; v < kVectors_; v++) loaded[v] = load_cached(x[v] + i * step);
    EDGESPEC_UNROLL
    for (int r = 0; r < kRows_; r++) {
      F factor = Simd::set1(factors[r * stride + i]);
      EDGESPEC_UNROLL
      for (int v = 0; v < kVectors_; v++) sums[r][v] = Simd::fma(loaded[v], factor, sums[r][v]);
    }
  }
}

// Weighted values of a step into kVectors_ registers of each row's state, from channel d on.
template <int kRows_, int kVectors_, class T>
inline void add_values(const T* values, int64_t size, int64_t d, int seen, const float (*weights)[kStep],
                       float* const* state) {
  F sums[kRows_][kVectors_];
  const T* x[kVectors_];
  EDGESPEC_UNROLL
  for (int v = 0; v < kVectors_; v++) {
    x[v] = values + d + v * Simd::kLanes;
    EDGESPEC_UNROLL
    for (int r = 0; r < kRows_; r++) sums[r][v] = Simd::load_floats(state[r] + 2 + d + v * Simd::kLanes);
  }
  accumulate<kRows_, kVectors_>(sums, seen, x, size, weights[0], kStep, nullptr, 0);
  EDGESPEC_UNROLL
  for (int v = 0; v < kVectors_; v++) {
    EDGESPEC_UNROLL
    for (int r = 0; r < kRows_; r++) Simd::store(state[r] + 2 + d + v * Simd::kLanes, sums[r][v]);
  }
}

// A step for kRows_ rows. `keys` and `values` begin at the step; `seen`: positions of it that exist.
template <class T, int kRows_>
void attention_step(const Attention& a, const T* keys, const T* values, int seen, const float* queries,
                    const Span* visible, const float* const* bias, float* const* state, bool fetch) {
  // While keys are read, so many lines of values are fetched per channel that all are when they are needed;
  // none where that would be less than one.
  constexpr int kLines = kStep * sizeof(T) / kLine * Simd::kTogether * Simd::kLanes / kStep;
  size_t fetched = 0;
  constexpr int kTogether = Simd::kTogether;
  const int64_t size = a.size;
  alignas(64) float scores[kRows_][kStep];
  for (int first = 0; first < kStep; first += kTogether * Simd::kLanes) {
    F sums[kRows_][kTogether];
    const T* x[kTogether];
    EDGESPEC_UNROLL
    for (int v = 0; v < kTogether; v++) {
      // What lies behind the last tile is hidden below, whatever it is; it must only be there.
      const int position = first + v * Simd::kLanes, tile = smaller(position / kRows, (seen - 1) / kRows);
      x[v] = keys + tile * kRows * size + position % kRows;
      EDGESPEC_UNROLL
      for (int r = 0; r < kRows_; r++) sums[r][v] = Simd::zero();
    }
    accumulate<kRows_, kTogether>(sums, size, x, kRows, queries, size,
                                  reinterpret_cast<const char*>(values) + fetched, fetch ? kLines : 0);
    fetched += size * kLines * kLine;
    EDGESPEC_UNROLL
    for (int v = 0; v < kTogether; v++) {
      EDGESPEC_UNROLL
      for (int r = 0; r < kRows_; r++) Simd::store(scores[r] + first + v * Simd::kLanes, sums[r][v]);
    }
  }
  for (int r = 0; r < kRows_; r++) {
    const int begin = static_cast<int>(larger<int64_t>(visible[r].begin, 0));
    const int end = static_cast<int>(smaller<int64_t>(visible[r].end, seen));
    float* s = scores[r];
    float& largest = state[r][0];
    float& total = state[r][1];
    if (begin >= end) {
      fill(s, s + kStep, 0.0f);
      continue;
    }
    if (bias[r])
      for (int i = begin; i < end; i++) s[i] += bias[r][i];
    fill(s, s + begin, kNothing);
    fill(s + end, s + kStep, kNothing);
    const float before = largest;
    largest = larger(before, largest_of(s));
    const float sum = weigh(s, largest);
    if (largest != before && total > 0) {
      alignas(64) float factor[Simd::kLanes];
      Simd::store(factor, exponential(Simd::set1(before - largest)));
      total *= factor[0];
      for (int64_t d = 0; d < size; d++) state[r][2 + d] *= factor[0];
    }
    total += sum;
  }
  int64_t d = 0;
  for (; d + kTogether * Simd::kLanes <= size; d += kTogether * Simd::kLanes)
    add_values<kRows_, kTogether>(values, size, d, seen, scores, state);
  for (; d < size; d += Simd::kLanes) add_values<kRows_, 1>(values, size, d, seen, scores, state);
}

template <class T>
using StepFunction = void (*)(const Attention&, const T*, const T*, int, const float*, const Span*,
                              const float* const*, float* const*, bool);

template <class T, int... r>
StepFunction<T> step_function(int rows, std::integer_sequence<int, r...>) {
  static constexpr StepFunction<T> functions[] = {attention_step<T, r + 1>...};
  return functions[rows - 1];
}

template <class T>
void attend_span(const Attention& a, int64_t head, int64_t span) {
  const int64_t rows = a.tokens * a.group(), stride = a.size + 2;
  const T* keys = static_cast<const T*>(a.keys) + head * a.capacity * a.size;
  const T* values = static_cast<const T*>(a.values) + head * a.capacity * a.size;
  float* states = a.partial + (head * a.spans() + span) * rows * stride;
  for (int64_t r = 0; r < rows; r++) {
    states[r * stride] = kNothing;
    fill(states + r * stride + 1, states + (r + 1) * stride, 0.0f);
  }
  const int64_t last = smaller(a.total, (span + 1) * Attention::kSpan);
  for (int64_t start = span * Attention::kSpan; start < last; start += kStep) {
    const int seen = static_cast<int>(smaller<int64_t>(kStep, a.total - start));
    for (int64_t first = 0; first < rows; first += kRowBlock) {
      const int n = static_cast<int>(smaller<int64_t>(kRowBlock, rows - first));
      Span visible[kRowBlock];
      const float* bias[kRowBlock];
      float* state[kRowBlock];
      bool any = false;
      for (int r = 0; r < n; r++) {
        const int64_t token = (first + r) / a.group();
        visible[r] = {a.visible[token].begin - start, a.visible[token].end - start};
        any = any || (visible[r].begin < seen && visible[r].end > 0);
        bias[r] = a.bias ? a.bias + token * a.bias_stride + start : nullptr;
        state[r] = states + (first + r) * stride;
      }
      if (!any) continue;
      step_function<T>(n, std::make_integer_sequence<int, kRowBlock>())(
          a, keys + start * a.size, values + start * a.size, seen, a.queries + (head * rows + first) * a.size,
          visible, bias, state, first == 0);
    }
  }
}

void attend(const Attention& a, int64_t head, int64_t span) {
  a.halves ? attend_span<half>(a, head, span) : attend_span<float>(a, head, span);
}

// Joins the spans of one token's rows of a key-value head, and writes them to y [size] each.
void join(const Attention& a, int64_t head, int64_t token, float* y) {
  const int64_t rows = a.tokens * a.group(), stride = a.size + 2;
  for (int64_t row = token * a.group(); row < (token + 1) * a.group(); row++, y += a.size) {
    float largest = kNothing, total = 0;
    fill(y, y + a.size, 0.0f);
    for (int64_t span = 0; span < a.spans(); span++) {
      const float* state = a.partial + ((head * a.spans() + span) * rows + row) * stride;
      if (state[1] == 0) continue;
      const float both = larger(largest, state[0]);
      float lanes[Simd::kLanes];
      Simd::store(lanes, exponential(Simd::set1(largest - both)));
      const float keep = total > 0 ? lanes[0] : 0.0f;
      Simd::store(lanes, exponential(Simd::set1(state[0] - both)));
      const float add = lanes[0];
      total = total * keep + state[1] * add;
      for (int64_t d = 0; d < a.size; d++) y[d] = y[d] * keep + state[2 + d] * add;
      largest = both;
    }
    const float inverse = 1.0f / total;
    for (int64_t d = 0; d < a.size; d++) y[d] *= inverse;
  }
}

}  // namespace EDGESPEC_ISA
}  // namespace edgespec
