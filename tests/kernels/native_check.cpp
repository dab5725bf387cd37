// Checks every instruction set of this processor, without Python, so that it also runs under an emulator:
// products of each against the portable code, bit for bit, and the portable code against sums in double
// precision of weights that are taken apart here as tile_formats.h describes them; attention of each against
// double precision, and a token's among others against its own alone, bit for bit.
//
//   native_check           all of that; the exit status says whether it passed
//   native_check --best    the name of the path that this processor takes
//   native_check --work PATH TYPE TOKENS OUTPUTS INPUTS     one multiplication
//   native_check --count PATH TYPE TOKENS OUTPUTS INPUTS    the instructions it takes (x86 alone)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__linux__) && defined(__x86_64__)
#include <csignal>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "kernels.h"

using namespace edgespec;

// See library.cpp.
extern "C" int edgespec_matmul(const char* isa, int64_t type, const uint8_t* w, int64_t outputs,
                               int64_t inputs, const float* bias, const float* x, int64_t tokens, float* y);
extern "C" int edgespec_attention(const char* isa, const Attention* attention, float* y);
extern "C" const char* edgespec_isa();

namespace {

struct Format {
  const char* name;
  Type type;
  int inputs;    // of a group
  size_t bytes;  // of a group
  int quants;    // bytes of it that hold quants
  int halves;    // float16 numbers, 16 each, at its end
};

const Format kFormats[] = {
    {"Q4_0", Type::Q4_0, 32, sizeof(GroupQ4_0), 256, 1},
    {"Q4_1", Type::Q4_1, 32, sizeof(GroupQ4_1), 256, 2},
    {"Q5_0", Type::Q5_0, 32, sizeof(GroupQ5_0), 320, 1},
    {"Q5_1", Type::Q5_1, 32, sizeof(GroupQ5_1), 320, 2},
    {"Q8_0", Type::Q8_0, 32, sizeof(GroupQ8_0), 512, 1},
    {"IQ4_NL", Type::IQ4_NL, 32, sizeof(GroupIQ4_NL), 256, 1},
    {"Q4_K", Type::Q4_K, 256, sizeof(GroupQ4_K), 2048, 2},
    {"Q5_K", Type::Q5_K, 256, sizeof(GroupQ5_K), 2560, 2},
    {"Q6_K", Type::Q6_K, 256, sizeof(GroupQ6_K), 3072, 1},
    {"F16", Type::F16, 32, sizeof(GroupF16), 0, 32},
};

// splitmix64: the same numbers on every machine.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % n); }
};

// Any bits but those of infinities and of what is not a number; between 2^-8 and 1, or nothing.
half random_half(Random& random) {
  const int sign = random.below(2) << 15, mantissa = random.below(1024);
  const int exponent = random.below(50) == 0 ? 0 : 7 + random.below(8);
  return static_cast<half>(sign | exponent << 10 | mantissa);
}

double value(half h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double magnitude = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return h & 0x8000 ? -magnitude : magnitude;
}

std::vector<uint8_t> random_tiles(const Format& format, int64_t outputs, int64_t inputs, Random& random) {
  const size_t groups = static_cast<size_t>((outputs + kRows - 1) / kRows * (inputs / format.inputs));
  std::vector<uint8_t> data(groups * format.bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next());
  for (size_t g = 0; g < groups; g++) {
    uint8_t* end = data.data() + (g + 1) * format.bytes;
    for (int i = 0; i < format.halves * kRows; i++) {
      const half h = random_half(random);
      std::memcpy(end - 2 * (i + 1), &h, 2);
    }
  }
  return data;
}

// Quant of a row and an input of one group.
int quant(const Format& format, const uint8_t* group, int row, int k) {
  const int block = k / kBlock, j = k % kBlock / 4, p = 4 * row + k % 4, blocks = format.inputs / kBlock;
  if (format.type == Type::Q8_0) return group[64 * j + p];
  int q = group[256 * block + 64 * (j / 2) + p] >> (j % 2 * 4) & 15;
  const uint8_t* upper = group + 256 * blocks;
  if (format.quants == 320 * blocks) q |= (upper[64 * block + p] >> j & 1) << 4;
  if (format.quants == 384 * blocks) q |= (upper[128 * block + 64 * (j / 4) + p] >> (j % 4 * 2) & 3) << 4;
  return q;
}

double weight(const Format& format, const std::vector<uint8_t>& data, int64_t inputs, int64_t output,
              int64_t input) {
  static const int kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const int row = static_cast<int>(output % kRows), k = static_cast<int>(input % format.inputs);
  const uint8_t* group =
      data.data() + (output / kRows * (inputs / format.inputs) + input / format.inputs) * format.bytes;
  auto number = [&](int index) {  // the index-th row of halves
    half h;
    std::memcpy(&h, group + format.bytes - 2 * kRows * (format.halves - index) + 2 * row, 2);
    return value(h);
  };
  if (format.type == Type::F16) return number(k);
  const int q = quant(format, group, row, k);
  const uint8_t* scales = group + format.quants;
  switch (format.type) {
    case Type::Q4_0:
      return number(0) * (q - 8);
    case Type::Q5_0:
      return number(0) * (q - 16);
    case Type::Q8_0:
      return number(0) * (q - 128);
    case Type::IQ4_NL:
      return number(0) * kIq4[q];
    case Type::Q4_1:
    case Type::Q5_1:
      return number(0) * q + number(1);
    case Type::Q6_K:
      return number(0) * static_cast<int8_t>(scales[k / 16 * kRows + row]) * (q - 32);
    default:
      break;
  }
  // Q4_K and Q5_K: byte i of ggml's 12 is byte i % 4 of word i / 4.
  auto byte = [&](int i) { return scales[4 * kRows * (i / 4) + 4 * row + i % 4]; };
  const int b = k / kBlock;
  const int scale = b < 4 ? byte(b) & 63 : (byte(b + 4) & 15) | (byte(b - 4) >> 6) << 4;
  const int minimum = b < 4 ? byte(b + 4) & 63 : byte(b + 4) >> 4 | (byte(b) >> 6) << 4;
  return number(0) * scale * q - number(1) * minimum;
}

// Activations that int8 holds exactly: per block integers up to 127, one of which is that, times a power
// of 2.
std::vector<float> exact_activations(int64_t tokens, int64_t inputs, Random& random) {
  std::vector<float> x(static_cast<size_t>(tokens * inputs));
  for (size_t i = 0; i < x.size(); i += kBlock) {
    const int exponent = random.below(6) - 8;
    for (int k = 0; k < kBlock; k++)
      x[i + k] = std::ldexp(static_cast<float>(random.below(255) - 127), exponent);
    x[i + random.below(kBlock)] = std::ldexp(127.0f, exponent);
  }
  return x;
}

std::vector<float> any_activations(int64_t tokens, int64_t inputs, Random& random) {
  std::vector<float> x(static_cast<size_t>(tokens * inputs));
  for (float& number : x) number = static_cast<float>(static_cast<int64_t>(random.next()) * 0x1p-62);
  return x;
}

// y with `kGuard` numbers before and after it, which must be left alone.
constexpr int kGuard = 64;
constexpr float kUntouched = -12345.0f;

std::vector<float> multiply(const char* path, const Format& format, const std::vector<uint8_t>& tiles,
                            int64_t outputs, int64_t inputs, const float* bias, const std::vector<float>& x) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / inputs;
  std::vector<float> y(static_cast<size_t>(tokens * outputs) + 2 * kGuard, kUntouched);
  if (edgespec_matmul(path, static_cast<int64_t>(format.type), tiles.data(), outputs, inputs, bias, x.data(),
                      tokens, y.data() + kGuard) != 0)
    return {};
  for (size_t i = 0; i < kGuard; i++) {
    if (y[i] != kUntouched || y[y.size() - 1 - i] != kUntouched) {
      std::printf("%s %s: wrote outside its output\n", path, format.name);
      std::exit(1);
    }
  }
  return std::vector<float>(y.begin() + kGuard, y.end() - kGuard);
}

bool available(const char* path) {
  const std::vector<uint8_t> tile(sizeof(GroupQ4_0));
  return !multiply(path, kFormats[0], tile, kRows, kBlock, nullptr, std::vector<float>(kBlock)).empty();
}

struct Shape {
  int64_t outputs, inputs;  // inputs in groups of 256
  bool bias;
};

const Shape kShapes[] = {
    {1, 256, true}, {15, 512, false}, {16, 256, false}, {17, 512, true}, {40, 1024, false}};
const int kTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 65};
const int kMostTokens = 65;

// The portable code on activations that int8 holds exactly: only sums are rounded.
bool portable_is_accurate(const Format& format, const Shape& shape, Random& random) {
  constexpr int kFew = 3;
  const std::vector<uint8_t> tiles = random_tiles(format, shape.outputs, shape.inputs, random);
  const std::vector<float> x = exact_activations(kFew, shape.inputs, random);
  const std::vector<float> y = multiply("scalar", format, tiles, shape.outputs, shape.inputs, nullptr, x);
  bool good = true;
  for (int64_t n = 0; n < shape.outputs; n++) {
    double exact[kFew] = {}, size[kFew] = {};
    for (int64_t k = 0; k < shape.inputs; k++) {
      const double w = weight(format, tiles, shape.inputs, n, k);
      for (int m = 0; m < kFew; m++) {
        const double product = w * x[m * shape.inputs + k];
        exact[m] += product;
        size[m] += std::fabs(product);
      }
    }
    for (int m = 0; m < kFew; m++)  // false for what is not a number, too
      good &= std::fabs(y[m * shape.outputs + n] - exact[m]) <= 1e-5 * size[m];
  }
  if (!good)
    std::printf("scalar %s %d x %d: not accurate\n", format.name, int(shape.outputs), int(shape.inputs));
  return good;
}

// A path on any activations against the portable code, each token alone.
bool same_bits(const char* path, const Format& format, const Shape& shape, const std::vector<uint8_t>& tiles,
               const std::vector<float>& x, const float* bias, const std::vector<float>& wanted) {
  for (int tokens : kTokens) {
    const std::vector<float> some(x.begin(), x.begin() + tokens * shape.inputs);
    const std::vector<float> y = multiply(path, format, tiles, shape.outputs, shape.inputs, bias, some);
    if (std::memcmp(y.data(), wanted.data(), sizeof(float) * tokens * shape.outputs) != 0) {
      std::printf("%s %s %d x %d, %d tokens%s: differs from the portable code\n", path, format.name,
                  int(shape.outputs), int(shape.inputs), tokens, bias ? ", bias" : "");
      return false;
    }
  }
  return true;
}

// A layer whose last tokens are asked for. Keys and values: what float16 holds, once more as float32.
struct Layer {
  static constexpr int64_t kHeads = 6, kKvHeads = 2, kGroup = 3, kTotal = 600, kCapacity = 608, kTokens = 7;
  int64_t size, window;
  std::vector<half> half_keys, half_values;
  std::vector<float> keys, values, queries;  // queries: [tokens][heads][size]

  Layer(int64_t size, int64_t window, Random& random) : size(size), window(window) {
    for (auto cache : {&half_keys, &half_values}) {
      cache->resize(static_cast<size_t>(kKvHeads * kCapacity * size));
      for (half& number : *cache) number = random_half(random);
    }
    for (half h : half_keys) keys.push_back(static_cast<float>(value(h)));
    for (half h : half_values) values.push_back(static_cast<float>(value(h)));
    queries = any_activations(kTokens * kHeads, size, random);
  }

  Span visible(int64_t token) const {
    const int64_t end = kTotal - kTokens + token + 1;
    return {window ? end - window : 0, end};
  }

  std::vector<float> attended(const char* path, bool halves, int64_t first, int64_t tokens) const {
    std::vector<float> turned, partial, y(static_cast<size_t>(tokens * kHeads * size));
    for (int64_t head = 0; head < kKvHeads; head++)
      for (int64_t t = first; t < first + tokens; t++) {
        const auto from = queries.begin() + (t * kHeads + head * kGroup) * size;
        turned.insert(turned.end(), from, from + kGroup * size);
      }
    std::vector<Span> spans;
    for (int64_t t = first; t < first + tokens; t++) spans.push_back(visible(t));
    Attention a{};
    a.heads = kHeads, a.kv_heads = kKvHeads, a.size = size, a.capacity = kCapacity, a.tokens = tokens;
    a.total = spans.back().end;
    a.halves = halves;
    a.keys = halves ? static_cast<const void*>(half_keys.data()) : keys.data();
    a.values = halves ? static_cast<const void*>(half_values.data()) : values.data();
    a.queries = turned.data();
    a.visible = spans.data();
    partial.resize(static_cast<size_t>(kHeads * a.spans() * tokens * (2 + size)));
    a.partial = partial.data();
    edgespec_attention(path, &a, y.data());
    return y;
  }

  // One head of one token, in double precision.
  std::vector<double> exact(int64_t token, int64_t head) const {
    const Span span = visible(token);
    const float* q = queries.data() + (token * kHeads + head) * size;
    const float* k = keys.data() + head / kGroup * kCapacity * size;
    const float* v = values.data() + head / kGroup * kCapacity * size;
    std::vector<double> y(static_cast<size_t>(size));
    double total = 0;
    for (int64_t p = span.begin; p < span.end; p++) {
      double score = 0;  // small enough to need no maximum
      for (int64_t d = 0; d < size; d++)
        score += double{q[d]} * k[(p / kRows * size + d) * kRows + p % kRows];
      total += std::exp(score);
      for (int64_t d = 0; d < size; d++) y[d] += std::exp(score) * v[p * size + d];
    }
    for (double& number : y) number /= total;
    return y;
  }
};

bool attention_is_right(const char* path, const Layer& layer, bool halves) {
  const std::vector<float> y = layer.attended(path, halves, 0, Layer::kTokens);
  bool good = true;
  for (int64_t t = 0; t < Layer::kTokens; t++) {
    const float* row = y.data() + t * Layer::kHeads * layer.size;
    const std::vector<float> alone = layer.attended(path, halves, t, 1);
    good &= std::memcmp(row, alone.data(), sizeof(float) * alone.size()) == 0;
    for (int64_t head = 0; head < Layer::kHeads; head++) {
      const std::vector<double> exact = layer.exact(t, head);
      for (int64_t d = 0; d < layer.size; d++)
        good &= std::fabs(row[head * layer.size + d] - exact[d]) <= 2e-5;
    }
  }
  if (!good)
    std::printf("%s attention, heads of %d, window %d%s: wrong\n", path, int(layer.size), int(layer.window),
                halves ? ", float16" : "");
  return good;
}

bool check_attention(const std::vector<const char*>& paths) {
  Random random{2};
  bool good = true;
  for (int64_t size : {16, 48, 80, 128}) {
    for (int64_t window : {0, 50, 560}) {
      const Layer layer(size, window, random);
      for (const char* path : paths)
        for (bool halves : {false, true}) good &= attention_is_right(path, layer, halves);
    }
  }
  return good;
}

bool check_products(const std::vector<const char*>& paths) {
  Random random{1};
  bool good = true;
  for (const Format& format : kFormats) {
    for (Shape shape : kShapes) {
      good &= portable_is_accurate(format, shape, random);
      if (format.inputs == kBlock) shape.inputs -= 7 * kBlock;  // no multiple of 256
      const std::vector<uint8_t> tiles = random_tiles(format, shape.outputs, shape.inputs, random);
      std::vector<float> x = any_activations(kMostTokens, shape.inputs, random);
      std::fill(x.begin(), x.begin() + kBlock, 0.0f);
      std::vector<float> bias(shape.outputs);
      for (float& b : bias) b = static_cast<float>(random.below(1000));
      const float* b = shape.bias ? bias.data() : nullptr;
      std::vector<float> wanted;
      for (int m = 0; m < kMostTokens; m++) {
        const std::vector<float> token(x.begin() + m * shape.inputs, x.begin() + (m + 1) * shape.inputs);
        const std::vector<float> y = multiply("scalar", format, tiles, shape.outputs, shape.inputs, b, token);
        wanted.insert(wanted.end(), y.begin(), y.end());
      }
      for (const char* path : paths) good &= same_bits(path, format, shape, tiles, x, b, wanted);
    }
  }
  return good;
}

// One multiplication, of the first `outputs` of 64 rows: their making costs the same for any number of them.
struct Work {
  const char* path;
  const Format* format;
  int64_t outputs, inputs;
  std::vector<uint8_t> tiles;
  std::vector<float> x;

  Work(char** arguments)
      : path(arguments[0]),
        format(nullptr),
        outputs(std::atoi(arguments[3])),
        inputs(std::atoi(arguments[4])) {
    for (const Format& f : kFormats)
      if (std::strcmp(f.name, arguments[1]) == 0) format = &f;
    if (!format || outputs < 1 || outputs > 64 || inputs < 1) {
      std::fprintf(stderr, "a type of ggml's, 1 to 64 outputs and some inputs are needed\n");
      std::exit(2);
    }
    tiles.assign(static_cast<size_t>(4 * inputs / format->inputs) * format->bytes, 0x11);
    x.assign(static_cast<size_t>(std::atoi(arguments[2]) * inputs), 1.0f);
  }
  bool done() const { return !multiply(path, *format, tiles, outputs, inputs, nullptr, x).empty(); }
};

#if defined(__linux__) && defined(__x86_64__)
// Instructions of a multiplication, one by one: for processors whose counters are not to be had.
long counted(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    const bool done = work.done();
    raise(SIGSTOP);
    _exit(done ? 0 : 1);
  }
  int status = 0;
  long steps = 0;
  waitpid(child, &status, 0);
  do {
    steps++;
    ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
    waitpid(child, &status, 0);
  } while (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
  ptrace(PTRACE_CONT, child, nullptr, nullptr);
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? steps : 0;
}
#endif

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && std::strcmp(arguments[1], "--best") == 0) {
    const char* best = edgespec_isa();
    std::puts(best ? best : "none");
    return best == nullptr;
  }
  if (count == 7 && std::strcmp(arguments[1], "--work") == 0) return Work(arguments + 2).done() ? 0 : 1;
#if defined(__linux__) && defined(__x86_64__)
  if (count == 7 && std::strcmp(arguments[1], "--count") == 0) {
    const long steps = counted(Work(arguments + 2));
    std::printf("%ld\n", steps);
    return steps ? 0 : 1;
  }
#endif
  std::vector<const char*> paths;
  for (const char* path : {"scalar", "avx2", "avxvnni", "avx512vnni", "neon", "dotprod", "i8mm"})
    if (available(path)) paths.push_back(path);
  const bool products = check_products(paths), attention = check_attention(paths),
             good = products && attention;
  std::printf("%s:", good ? "products of the same bits, and right attention, on all paths" : "FAILED");
  for (const char* path : paths) std::printf(" %s", path);
  std::printf("\n");
  return good ? 0 : 1;
}
