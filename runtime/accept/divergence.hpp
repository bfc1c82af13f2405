// Where generations that must be alike first differ: across the ranks of a tp group, across
// replicas that were given the same prompts, and across repeats. The majority is right; where there
// is none the reason names all, and nobody is blamed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/mesh.hpp"
#include "runtime/accept/case.hpp"
#include "runtime/serving/residual_marks.hpp"

namespace testbed {

// What all ranks marked. Meshes of tp and dp alone.
struct MarkedRuns {
  Mesh mesh;
  std::vector<ResidualMark> places;  // of rank 0's first repeat
  // [repeat][rank][mark] hashes at those places.
  std::vector<std::vector<std::vector<uint64_t>>> hashes;
  // [rank] what it computes with: replicas on unlike devices need not agree in their bits.
  std::vector<std::string> devices;
};

struct Divergence {
  std::string reason;         // rank, layer, collective, step and repeat: one line
  std::vector<Blame> blamed;  // with `host` left to the caller
};

// Of the first place in which something differs; nullopt: all is alike.
std::optional<Divergence> first_divergence(const MarkedRuns& runs);

}  // namespace testbed
