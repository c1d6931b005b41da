"""Processes of Flower: certificates, start and end, data dealt into folders, commands of `launch.flower`."""
