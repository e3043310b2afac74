"""What the API server has taken and this release does not know: the definitions are newer, as they are for a moment in
every upgrade, and their defaults stand in every resource. Whoever goes on without such fields says so."""

from __future__ import annotations

import copy
from typing import Any

from pydantic import BaseModel, ValidationError

from migratory_resources.validation import path_of


def known_part(model: type[BaseModel], document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A copy of the document without the fields that the model has not, and their paths."""
    known = copy.deepcopy(document)
    try:
        model.model_validate(known)
    except ValidationError as error:
        # All of them are told at once: nothing is looked into that is not known.
        extra = [detail for detail in error.errors(include_url=False) if detail["type"] == "extra_forbidden"]
        for detail in extra:
            *above, last = detail["loc"]
            place: Any = known
            for part in above:
                place = place[part]
            del place[last]
        return known, sorted(path_of(detail) for detail in extra)
    return known, []
