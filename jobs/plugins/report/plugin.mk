##@ Look
report: ## Where the time went, a page with plots [RUN="a b"] [FLAGS="--metric eval_loss"]
KIT_TARGETS += report
