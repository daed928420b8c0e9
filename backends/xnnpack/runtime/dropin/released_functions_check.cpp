// Linked against the released library alone, so that the build fails when it
// does not export what DropIn.cpp looks up at run time.

#include "ReleasedFunctions.h"

extern const auto kGetDefineNodeFunc = &getDefineNodeFunc;
extern const auto kVerifyXNodeUnion = &verifyXNodeUnion;
