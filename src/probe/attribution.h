// Which part of a quantised model its error comes from: the divergence from the float model when
// only that part is quantised, and when only that part is left float.
#pragma once

#include <optional>
#include <vector>

#include "recipe/recipe.h"
#include "runtime/simulated_backend.h"

namespace quarot {

// Some of a model's layers and points (kPoints): those named, all where none is; or, outside, all
// others.
struct Part {
  std::optional<int64_t> layer;
  std::optional<Space> point;
  bool inside = true;

  bool contains(int64_t at_layer, Space at_point) const {
    return inside == ((!layer || *layer == at_layer) && (!point || *point == at_point));
  }
};

// What of a model is quantised. A site is the activations there and the weights that read them; the
// keys and the values of a layer are what it puts into the cache.
struct Selection {
  Part weights, activations, keys, values;

  static Selection of(const Part& part) { return {part, part, part, part}; }
  static Selection none();
  static Selection all();
  static Selection only_site(Space site);
  static Selection all_but_site(Space site);
  static Selection only_layer(int64_t layer);
  static Selection all_but_layer(int64_t layer);
  static Selection only(int64_t layer, Space point);
};

struct Loss {
  double nll = 0;  // nats a token
  double kl = 0;   // from the float model's predictions, nats a token
};

// One model in one basis on some windows. Weights are rounded to the nearest as the recipe says; of
// the rounded ones only the grids are held, and the integers made again where they are needed: the
// whole takes hardly more memory than the float model.
class Attribution {
 public:
  // `model`, with float weights, must outlive it; it is changed while run() runs and as it was
  // afterwards. Each window is of two tokens or more.
  Attribution(Model& model, const Recipe& recipe, const std::vector<std::vector<Token>>& windows);

  const Loss& float_loss() const { return float_loss_; }
  const Matrix& float_logits() const { return float_logits_; }

  Loss run(const Selection& selection) { return run(selection, 0, float_residuals_); }

  // Of everything quantised: its loss, and ‖x̂ − x‖/‖x‖ of the residual stream behind each layer.
  struct Depth {
    Loss loss;
    std::vector<double> errors;
  };
  Depth run_all();

  // What changes in one layer alone needs no layer before it: the stream before it is known from
  // the float model, or, for all_but_layer(), from run_all().
  Loss run_only(int64_t layer, const Selection& selection) {
    return run(selection, layer, float_residuals_);
  }
  Loss run_all_but(int64_t layer) {
    return run(Selection::all_but_layer(layer), layer, rounded_residuals_);
  }

 private:
  // What round_to_nearest() finds, but for the integers.
  struct Grids {
    WeightQuant quant;
    Matrix scales;
    BasicMatrix<int32_t> zeros;

    Matrix rounded(ConstMatrixRef weight) const;
  };

  Precision precision(bool keys, bool values) const;
  void select(const Selection& selection, int64_t layer);
  void restore(int64_t layer);
  Matrix logits(const Selection& selection, int64_t first, const std::vector<Matrix>& residuals,
                std::vector<Matrix>* kept);
  Loss run(const Selection& selection, int64_t first, const std::vector<Matrix>& residuals);
  Loss score(const Matrix& logits) const;

  Model& model_;
  Precision precision_;
  Batch batch_;
  std::vector<std::array<Grids, kRoles.size()>> grids_;
  std::array<Matrix, kRoles.size()> floats_;  // of the layer that is quantised at the moment
  std::vector<Matrix> float_residuals_, rounded_residuals_;  // before each layer, and at the end
  Matrix float_logits_;
  Loss float_loss_;
};

}  // namespace quarot
