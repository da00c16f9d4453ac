##@ Results
export: ## Weights of the newest run as .safetensors [RUN=...] [CHECKPOINT=best]
KIT_TARGETS += export
