"""Privacy-loss numerics of the upper bounds: pairs of output laws, grids, composition, moments of one coordinate."""
