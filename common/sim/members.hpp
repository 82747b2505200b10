// Names of the tiles in a block's storage, for reports. A storage struct says what its members are called,
//
//     struct Storage {
//       SharedTile<half, 64, 128> Q, KV[2][2];
//       SHARED_MEMBERS(Q, KV);
//     };
//
// and a place in it is then called "KV[0][1]", or "group[1].Q" where structs are nested.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/sim/block.hpp"

#define SHARED_MEMBERS(...)                   \
  template <typename Visitor>                 \
  void visit_members(Visitor visitor) const { \
    visitor(#__VA_ARGS__, __VA_ARGS__);       \
  }                                           \
  static_assert(true)

namespace flash::sim {

template <typename T, int Rows, int Cols, typename Layout>
class SharedTile;
template <typename T, int Size>
class SharedVector;

namespace detail {

struct AnyMembers {
  template <typename... Members>
  void operator()(const char*, const Members&...) const {}
};
template <typename Storage>
concept HasMembers = requires(const Storage& storage) {
  storage.visit_members(AnyMembers{});
};

template <typename T, int Rows, int Cols, typename Layout>
bool has_shape(const SharedTile<T, Rows, Cols, Layout>&, const TilePlace& place) {
  return Rows == place.rows && Cols == place.cols;
}
template <typename T, int Size>
bool has_shape(const SharedVector<T, Size>&, const TilePlace& place) {
  return place.rows == 1 && Size == place.cols;
}
template <typename Tile>
concept HasShape = requires(const Tile& tile, const TilePlace& place) {
  has_shape(tile, place);
};

/// The name of the member of that shape that begins where the tile does, after `prefix`; "" if it is none of them.
/// Members of a union begin at one place. A place without rows is a byte: the first member that contains it.
template <typename Member>
std::string find_member(const Member& member, const TilePlace& place, const std::string& prefix) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&member);
  const auto* const wanted = static_cast<const std::byte*>(place.tile);
  if (wanted < begin || wanted >= begin + sizeof(Member)) return "";
  if constexpr (std::is_array_v<Member>) {
    using Element = std::remove_extent_t<Member>;
    const auto index = std::size_t(wanted - begin) / sizeof(Element);
    return find_member(member[index], place, prefix + "[" + std::to_string(index) + "]");
  } else if constexpr (HasMembers<Member>) {
    std::string found;
    member.visit_members([&](std::string_view names, const auto&... members) {
      const auto look_into = [&](const auto& next) {
        const auto comma = names.find(',');
        const std::string name(names.substr(0, comma));
        names.remove_prefix(comma == names.npos ? names.size() : names.find_first_not_of(' ', comma + 1));
        if (found.empty()) found = find_member(next, place, prefix.empty() ? name : prefix + "." + name);
      };
      (look_into(members), ...);
    });
    return found;
  } else if constexpr (HasShape<Member>) {
    return place.rows == 0 || (wanted == begin && has_shape(member, place)) ? prefix : "";
  } else {
    return prefix;
  }
}

/// For Block::name_members.
template <typename Storage>
std::string member_name(const void* storage, const TilePlace& place) {
  return find_member(*static_cast<const Storage*>(storage), place, "");
}

}  // namespace detail
}  // namespace flash::sim
