// The only file that knows SimGrid: VirtualTime on S4U. Flags and their reasons are in
// docs/decisions.md.
#include <algorithm>
#include <map>
#include <simgrid/s4u.hpp>

#include "kernels/base/check.hpp"
#include "kernels/sim/platform.hpp"
#include "kernels/sim/virtual_time.hpp"

namespace testbed {
namespace {

namespace sg = simgrid::s4u;

sg::Engine* make_engine() {
  const char* const arguments[] = {"testbed",
                                   "--cfg=network/model:CM02",
                                   "--cfg=network/crosstraffic:0",
                                   "--cfg=network/TCP-gamma:1e30",
                                   "--cfg=surf/precision:1e-12",
                                   "--cfg=maxmin/precision:1e-9",
                                   "--cfg=contexts/stack-size:256",  // KiB
                                   "--log=root.app:file:/dev/null",  // a deadlock is told by run()
                                   nullptr};
  int n = static_cast<int>(std::size(arguments)) - 1;
  return new sg::Engine(&n, const_cast<char**>(arguments));
}

class SimGridTime final : public VirtualTime {
 public:
  explicit SimGridTime(const ClusterSpec& cluster) : engine_(make_engine()), platform_(cluster) {}
  ~SimGridTime() override {
    flows_.clear();
    barriers_.clear();
    semaphores_.clear();
    // Marked as going away, but it is what lets one process simulate several clusters in turn.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    engine_->shutdown();
#pragma GCC diagnostic pop
  }
  SimGridTime(const SimGridTime&) = delete;
  SimGridTime& operator=(const SimGridTime&) = delete;

  std::vector<size_t> run(const std::vector<std::function<void()>>& actors) override {
    std::vector<bool> done(actors.size(), false);
    begin_ = sg::Engine::get_clock();
    for (size_t i = 0; i < actors.size(); ++i) {
      sg::Actor::create("actor" + std::to_string(i), platform_.first_host(), [&, i] {
        actors[i]();
        done[i] = true;
      });
    }
    engine_->run();
    for (const sg::ActorPtr& actor : engine_->get_all_actors()) actor->kill();
    engine_->run();
    std::vector<size_t> left;
    for (size_t i = 0; i < done.size(); ++i) {
      if (!done[i]) left.push_back(i);
    }
    return left;
  }

  double now() const override { return sg::Engine::get_clock() - begin_; }

  void sleep_until(double time_s) override { sg::this_actor::sleep_until(begin_ + time_s); }

  FlowId start_flow(int source, int target, double n_bytes) override {
    const auto [from, to] = platform_.ends(source, target);
    const auto whole = static_cast<uint64_t>(std::max(1.0, n_bytes + 0.5));
    const FlowId id = next_flow_++;
    flows_.emplace(id, sg::Comm::sendto_async(from, to, whole));
    return id;
  }

  double wait_flow(FlowId flow) override {
    const auto entry = flows_.find(flow);
    CHECK(entry != flows_.end());
    const sg::CommPtr comm = entry->second;
    comm->wait();
    return comm->get_finish_time() - begin_;
  }

  void forget_flow(FlowId flow) override { flows_.erase(flow); }

  int make_barrier(int n) override {
    barriers_.push_back(sg::Barrier::create(static_cast<unsigned>(n)));
    return static_cast<int>(barriers_.size()) - 1;
  }
  void wait_barrier(int barrier) override { barriers_[static_cast<size_t>(barrier)]->wait(); }

  int make_semaphore() override {
    semaphores_.push_back(sg::Semaphore::create(0));
    return static_cast<int>(semaphores_.size()) - 1;
  }
  void release(int semaphore) override { semaphores_[static_cast<size_t>(semaphore)]->release(); }
  void acquire(int semaphore) override { semaphores_[static_cast<size_t>(semaphore)]->acquire(); }

 private:
  sg::Engine* engine_;  // shutdown() deletes it
  Platform platform_;
  double begin_ = 0.0;
  std::map<FlowId, sg::CommPtr> flows_;
  FlowId next_flow_ = 0;
  std::vector<sg::BarrierPtr> barriers_;
  std::vector<sg::SemaphorePtr> semaphores_;
};

}  // namespace
}  // namespace testbed

extern "C" __attribute__((visibility("default"))) testbed::VirtualTime* testbed_make_virtual_time(
    const testbed::ClusterSpec* cluster) {
  return new testbed::SimGridTime(*cluster);
}
