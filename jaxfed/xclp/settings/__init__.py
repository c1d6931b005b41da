"""Settings of XCLP and label propagation: fields, defaults, rules, and what they reveal to whom."""
