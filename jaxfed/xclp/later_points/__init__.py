"""Labels for points that come after a labeling, from its artifacts: in the clear and through its session."""
