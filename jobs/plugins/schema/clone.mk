##@ Work on the kit
schema: $(READY) ## Write configs/schema.json and the tables of keys in configs/README.md
	@$(PY) -m jobs.plugins.schema
.PHONY: schema
