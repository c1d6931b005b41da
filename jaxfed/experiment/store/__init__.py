"""The files of an experiment: workdir, records, compiled programs."""
