// Steps and states as text, for traces.
#pragma once
#include <string>

#include "steps.h"

std::string describe(const State& before, Action action, const State& after);
