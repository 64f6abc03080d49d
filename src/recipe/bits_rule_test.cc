#include "recipe/bits_rule.h"
