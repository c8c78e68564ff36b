"""The only room that opens outside files: recipes, data sets, bundles, weights. All of it is untrusted."""
