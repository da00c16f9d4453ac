##@ Look
KIT_TARGETS += doctor
doctor: ## Whether runs can be queued and can train here, and what to do [FLAGS="--write-site --probe"]
