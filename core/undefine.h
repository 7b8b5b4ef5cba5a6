/* The names of a set of vector instructions, free for the next one: see kernels.h. */
#undef NAME
#undef SET_NAME
#undef HAS_FMA
#undef WIDTH
#undef VECTOR
#undef LOAD
#undef STORE
#undef ALL
#undef ADD
#undef SUB
#undef PLUS
#undef MUL
#undef ABS
#undef FMA
#undef FMS
#undef UNLESS_BELOW
#undef DIFFER
