// What the stages and the probe call a measured figure: the same keys wherever one is made, so that
// a profile's expectations meet them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.hpp"
#include "parallel/comm/communicator.hpp"
#include "runtime/accept/acceptance_profile.hpp"

namespace testbed {

// "within-host" or "between-hosts": whether these world ranks are all on one of the hosts
// [world_size].
std::string_view scope_of(const std::vector<std::string>& hosts, const std::vector<int>& ranks);

// device.read_gb_s: every rank reads at once.
FigureKey read_key();

// device.gemm_tflop_s of products in this dtype.
FigureKey gemm_key(DType dtype);

// link.one_way_us, link.one_way_gb_s or link.both_ways_gb_s of one message of n_bytes each way.
FigureKey link_key(std::string_view figure, int64_t n_bytes, std::string_view scope);

// collective.us or collective.busbw_gb_s; n_bytes of the payload, as nccl-tests counts them.
FigureKey collective_key(std::string_view figure,
                         CommOp op,
                         int ranks,
                         int64_t n_bytes,
                         std::string_view scope,
                         CommAlgorithm algorithm);

// A model.* figure; split "tp 8" or "pp 2 tp 4".
FigureKey model_key(std::string_view figure, std::string_view model, std::string_view split);

// "collective.busbw_gb_s all_reduce 8 ranks 8388608 bytes within-host ring": for people.
std::string describe(const FigureKey& key);

}  // namespace testbed
