"""The site: pages of docs/, README, CONTRIBUTING and results/, and pages made from code and results."""
