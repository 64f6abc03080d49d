// The vector spaces between a transformer's linear maps, and the roles those maps play. DESIGN.md,
// section 2: rotating a model means choosing a basis for each space.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quarot {

enum class Space {
  kResidual,         // [hidden]                 the stream that layers read from and add to
  kAttentionInput,   // [hidden]                 output of the attention norm
  kQuery,            // [heads · head_dim]
  kKey,              // [kv_heads · head_dim]
  kValue,            // [kv_heads · head_dim]
  kAttentionOutput,  // [heads · head_dim]       what o_proj reads
  kFfnInput,         // [hidden]                 output of the FFN norm
  kGate,             // [ffn]
  kUp,               // [ffn]
  kFfnHidden,        // [ffn]                    act(gate)·up, what down_proj reads
  kFinal,            // [hidden]                 output of the final norm
  kVocabulary,       // [vocab]
};
inline constexpr size_t kSpaces = static_cast<size_t>(Space::kVocabulary) + 1;

enum class Role { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown };
inline constexpr std::array kRoles = {Role::kQuery, Role::kKey, Role::kValue, Role::kOutput,
                                      Role::kGate,  Role::kUp,  Role::kDown};

struct RoleSpaces {
  std::string_view name;  // as the field calls the linear
  Space input;
  Space output;
};

// What each linear reads and writes. Every architecture's linears are one of these.
constexpr RoleSpaces spaces_of(Role role) {
  switch (role) {
    case Role::kQuery:
      return {"q_proj", Space::kAttentionInput, Space::kQuery};
    case Role::kKey:
      return {"k_proj", Space::kAttentionInput, Space::kKey};
    case Role::kValue:
      return {"v_proj", Space::kAttentionInput, Space::kValue};
    case Role::kOutput:
      return {"o_proj", Space::kAttentionOutput, Space::kResidual};
    case Role::kGate:
      return {"gate_proj", Space::kFfnInput, Space::kGate};
    case Role::kUp:
      return {"up_proj", Space::kFfnInput, Space::kUp};
    case Role::kDown:
      return {"down_proj", Space::kFfnHidden, Space::kResidual};
  }
  return {};
}

// The spaces that quantised linears read: where activations are rotated, quantised, calibrated,
// measured.
inline constexpr std::array kSites = {Space::kAttentionInput, Space::kAttentionOutput,
                                      Space::kFfnInput, Space::kFfnHidden};

constexpr size_t site_index(Space site) {
  return static_cast<size_t>(std::find(kSites.begin(), kSites.end(), site) - kSites.begin());
}

// The first, or the only, linear that reads a site.
constexpr Role first_reader(Space site) {
  return *std::find_if(kRoles.begin(), kRoles.end(),
                       [site](Role role) { return spaces_of(role).input == site; });
}

constexpr std::string_view space_name(Space space) {
  switch (space) {
    case Space::kResidual:
      return "residual";
    case Space::kAttentionInput:
      return "attention input";
    case Space::kQuery:
      return "query";
    case Space::kKey:
      return "key";
    case Space::kValue:
      return "value";
    case Space::kAttentionOutput:
      return "attention output";
    case Space::kFfnInput:
      return "ffn input";
    case Space::kGate:
      return "gate";
    case Space::kUp:
      return "up";
    case Space::kFfnHidden:
      return "ffn hidden";
    case Space::kFinal:
      return "final";
    case Space::kVocabulary:
      return "vocabulary";
  }
  return "";
}

}  // namespace quarot
