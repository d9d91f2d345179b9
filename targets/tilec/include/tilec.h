// What a generated kernel includes.
#pragma once
#include "dot.h"
#include "dot_pairs.h"
#include "vecmath.h"
