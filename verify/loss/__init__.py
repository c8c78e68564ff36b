"""Privacy-loss numerics: exact masses of output cells under every centre, and their convolutions with error bounds."""
