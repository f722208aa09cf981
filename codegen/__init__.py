"""Code generation: loop IR, schedules, the math library and the emitters."""
