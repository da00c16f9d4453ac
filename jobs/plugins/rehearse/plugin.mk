##@ Results
rehearse: ## Stop and kill a small training, compare how it ends: CONFIG=... or RUN=... [SET=] [FLAGS=]
KIT_TARGETS += rehearse
