// Graphs: captured work, and its launches. A launch runs a node when those before it have run; of
// several that may, the order of the environment chooses, so that a missing edge shows.
#include <algorithm>

#include "tests/cuda_emulation/state.hpp"

namespace emulation {
namespace {

class GraphLaunch {
 public:
  explicit GraphLaunch(std::shared_ptr<const Nodes> nodes)
      : nodes_(std::move(nodes)), done_(nodes_->size(), false) {
    // External events count from the launch, as records on a stream do.
    for (const Node& node : *nodes_) {
      const auto& event = node.work.event;
      if (event == nullptr) {
        work_.push_back(node.work);
      } else if (node.work.kind == Kind::record) {
        event->capture = nullptr;
        work_.push_back(record_work(event, ++event->n_recorded));
      } else {
        work_.push_back(wait_work(event, event->n_recorded));
      }
    }
  }

  // false: a node waits for something.
  bool run() {
    for (bool any = true; any && n_done_ < work_.size();) any = run_round();
    return n_done_ == work_.size() || state().sticky_error != cudaSuccess;
  }

 private:
  bool is_ready(size_t i) const {
    const auto& after = (*nodes_)[i].after;
    return !done_[i] && std::all_of(after.begin(), after.end(), [&](size_t j) { return done_[j]; });
  }
  // Forward: as captured. Else the latest that may run.
  bool run_round() {
    const size_t n = work_.size();
    const bool forward = state().order.kind == Order::Kind::forward;
    for (size_t k = 0; k < n; ++k) {
      const size_t i = forward ? k : n - 1 - k;
      if (!is_ready(i) || !work_[i].run()) continue;
      done_[i] = true;
      ++n_done_;
      return state().sticky_error == cudaSuccess;
    }
    return false;
  }

  std::shared_ptr<const Nodes> nodes_;
  std::vector<Work> work_;
  std::vector<bool> done_;
  size_t n_done_ = 0;
};

// Work that neither other nodes nor the origin come after.
bool is_joined(const Capture& capture) {
  std::vector<bool> is_leaf(capture.nodes.size(), true);
  for (const Node& node : capture.nodes) {
    for (const size_t i : node.after) is_leaf[i] = false;
  }
  for (const size_t i : capture.origin->after) is_leaf[i] = false;
  return std::none_of(is_leaf.begin(), is_leaf.end(), [](bool leaf) { return leaf; });
}

void end_capture(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    if (state().streams.count(stream) == 0) continue;
    stream->capture = nullptr;
    stream->after.clear();
  }
  state().captures.erase(capture);
}

cudaError_t end_capture(Stream& stream, cudaGraph_t* graph) {
  const auto capture = stream.capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != &stream) {
    capture->invalid = true;
    return cudaErrorStreamCaptureUnmatched;
  }
  const bool joined = capture->invalid || is_joined(*capture);
  end_capture(capture);
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  auto* made = new Graph{std::move(capture->nodes)};  // events still hold the capture
  state().graphs.insert(made);
  *graph = reinterpret_cast<cudaGraph_t>(made);
  return cudaSuccess;
}

Graph* find_graph(cudaGraph_t handle) {
  auto* graph = reinterpret_cast<Graph*>(handle);
  return state().graphs.count(graph) != 0 ? graph : nullptr;
}
GraphExec* find_exec(cudaGraphExec_t handle) {
  auto* exec = reinterpret_cast<GraphExec*>(handle);
  return state().graph_execs.count(exec) != 0 ? exec : nullptr;
}

bool same_topology(const Nodes& a, const Nodes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Node& x, const Node& y) {
    return x.work.kind == y.work.kind && x.after == y.after;
  });
}

}  // namespace

Work graph_work(std::shared_ptr<const Nodes> nodes) {
  return {Kind::graph, [launch = GraphLaunch(std::move(nodes))]() mutable { return launch.run(); }};
}

}  // namespace emulation

using emulation::entry;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return entry("cudaStreamBeginCapture", [&] {
    emulation::Stream* stream = emulation::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    stream->capture = std::make_shared<emulation::Capture>(
        emulation::Capture{mode, std::this_thread::get_id(), stream, {stream}});
    stream->after.clear();
    emulation::state().captures.insert(stream->capture);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return entry("cudaStreamEndCapture", [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *graph = nullptr;
    emulation::Stream* stream = emulation::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return emulation::end_capture(*stream, graph);
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return entry("cudaStreamIsCapturing", [&] {
    emulation::Stream* stream = emulation::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (status == nullptr) return cudaErrorInvalidValue;
    *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return entry("cudaThreadExchangeStreamCaptureMode", [&] {
    static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    if (mode == nullptr) return cudaErrorInvalidValue;
    std::swap(current, *mode);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* handle,
                                 cudaGraph_t graph_handle,
                                 unsigned long long flags) {
  return entry("cudaGraphInstantiate", [&] {
    const emulation::Graph* graph = emulation::find_graph(graph_handle);
    if (handle == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    if (flags != 0 && flags != cudaGraphInstantiateFlagUseNodePriority) {
      return cudaErrorInvalidValue;
    }
    auto* exec = new emulation::GraphExec{std::make_shared<emulation::Nodes>(graph->nodes)};
    emulation::state().graph_execs.insert(exec);
    *handle = reinterpret_cast<cudaGraphExec_t>(exec);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  return entry("cudaGraphLaunch", [&] {
    emulation::Stream* stream = emulation::find_stream(stream_handle);
    const emulation::GraphExec* exec = emulation::find_exec(handle);
    if (stream == nullptr || exec == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) {  // child graphs are not emulated
      stream->capture->invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    for (const emulation::Node& node : *exec->nodes) {
      if (node.work.event != nullptr) node.work.event->stream = stream;
    }
    return emulation::enqueue_work(*stream, emulation::graph_work(exec->nodes));
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t handle,
                                cudaGraph_t graph_handle,
                                cudaGraphExecUpdateResultInfo* info) {
  return entry("cudaGraphExecUpdate", [&] {
    emulation::GraphExec* exec = emulation::find_exec(handle);
    const emulation::Graph* graph = emulation::find_graph(graph_handle);
    if (exec == nullptr || graph == nullptr || info == nullptr) return cudaErrorInvalidValue;
    *info = {};
    if (!emulation::same_topology(*exec->nodes, graph->nodes)) {
      info->result = cudaGraphExecUpdateErrorTopologyChanged;
      return cudaErrorGraphExecUpdateFailure;
    }
    info->result = cudaGraphExecUpdateSuccess;
    exec->nodes = std::make_shared<emulation::Nodes>(graph->nodes);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  return emulation::release("cudaGraphDestroy", [&] {
    emulation::Graph* graph = emulation::find_graph(handle);
    if (graph == nullptr) return cudaErrorInvalidValue;
    emulation::state().graphs.erase(graph);
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return emulation::release("cudaGraphExecDestroy", [&] {
    emulation::GraphExec* exec = emulation::find_exec(handle);
    if (exec == nullptr) return cudaErrorInvalidValue;
    emulation::state().graph_execs.erase(exec);
    delete exec;
    return cudaSuccess;
  });
}
