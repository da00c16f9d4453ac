##@ Results
compare: ## Compare RUN=... bit for bit with WITH=..., a run without interruption
KIT_TARGETS += compare
