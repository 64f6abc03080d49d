// The systems the field compares, each as a choice along the axes of a recipe.
#pragma once

#include <span>

#include "recipe/recipe.h"

namespace quarot {

struct Rival {
  NamedRecipe named;
  void (*choose)(Recipe&);  // over a recipe in which nothing is chosen
};
std::span<const Rival> rivals();

}  // namespace quarot
