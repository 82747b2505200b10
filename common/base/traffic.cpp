#include "common/base/traffic.hpp"

namespace flash {

Traffic compulsory_traffic(const AttentionCall& call, const std::vector<TensorRef>& kept) {
  const Problem& p = call.problem;
  const auto bytes = [](const TensorRef& t) { return t.batch * t.heads * t.rows * t.cols * t.element_bytes; };
  Traffic traffic;
  traffic.add("Q", bytes(call.q), 0);
  // The last row sees the most keys; with causal masking and more queries than keys that is still all of them.
  const bool any_visible = p.visible_keys(p.seq_q - 1) > 0;
  traffic.add("K", any_visible ? bytes(call.k) : 0, 0);
  traffic.add("V", any_visible ? bytes(call.v) : 0, 0);
  for (const TensorRef& t : kept) traffic.add(t.name, bytes(t), bytes(t));
  traffic.add("O", 0, bytes(call.o));
  traffic.add("LSE", 0, bytes(call.lse));
  return traffic;
}

}  // namespace flash
