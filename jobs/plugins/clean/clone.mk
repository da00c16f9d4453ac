# Not for `kit init`: the Makefile of a user often has a target clean.
##@ Clean, debug
clean: ## List runs that are over, and code that no run names [RUN=...] [FLAGS="--days 30"]; YES=1 deletes
KIT_TARGETS += clean
