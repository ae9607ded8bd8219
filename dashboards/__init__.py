"""Grafana dashboards, Prometheus and Grafana alert rules: built from `app.metrics`, pushed to a Grafana server."""
