#include "model/family.h"

namespace quarot {

const Family kMistral = {
    .model_type = "mistral", .linears = kLlamaLinears, .configure = slide_every_layer};

}  // namespace quarot
