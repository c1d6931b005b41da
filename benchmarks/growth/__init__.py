"""Growth of run time with the number of points: figures and tables of what `launch.bench` measured."""
