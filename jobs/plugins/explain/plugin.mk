##@ Look
KIT_TARGETS += explain
explain: ## What keys mean [KEY=train.lr or train] and their values [CONFIG=... or RUN=...]
