"""What the cells of a sweep say of a machine: how speed follows factors, observations, other predictors."""
