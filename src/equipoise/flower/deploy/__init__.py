"""Deployment on Flower: projects, certificates, processes, checks."""
