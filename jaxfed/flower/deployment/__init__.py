"""Processes of Flower: certificates, start and end, clients' data in folders, commands of `launch.flower`."""
