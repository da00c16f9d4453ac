##@ Run
sweep: ## Many runs as one job array: CONFIG=... [SET="train.lr=0.01,0.1"] [DRY=1]
KIT_TARGETS += sweep
