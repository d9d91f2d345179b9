// What a generated kernel includes.
#pragma once
#include "dot.h"
#include "vecmath.h"
