{{- /* What kustomize does with base and components, on objects in a map `state` under `items`. */ -}}

{{- /* Adds an object, unless it is there. */ -}}
{{- define "pilotlight.add" -}}
{{- $isThere := false -}}
{{- range .state.items }}{{ if and (eq .kind $.item.kind) (eq .metadata.name $.item.metadata.name) }}{{ $isThere = true }}{{ end }}{{ end -}}
{{- if not $isThere }}{{ $_ := set .state "items" (append .state.items .item) }}{{ end -}}
{{- end -}}

{{- /* Adds the objects of the manifest files of a glob. */ -}}
{{- define "pilotlight.read" -}}
{{- range $path, $content := .root.Files.Glob .glob -}}
{{- range regexSplit "(?m)^---$" (toString $content) -1 -}}
{{- $item := fromYaml . -}}
{{- if and $item.kind (ne $item.kind "Kustomization") -}}
{{- $_ := set $item.metadata "labels" (merge (dict "app.kubernetes.io/part-of" "pilotlight") (default dict $item.metadata.labels)) -}}
{{- include "pilotlight.add" (dict "state" $.state "item" $item) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The names of a map's values that are set, in the order of kustomize's components, as JSON. */ -}}
{{- define "pilotlight.chosen" -}}
{{- $chosen := list -}}
{{- range $name, $value := . }}{{ if $value }}{{ $chosen = append $chosen $name }}{{ end }}{{ end -}}
{{- toJson $chosen -}}
{{- end -}}

{{- /* Adds a component: its resources, and its patches of the objects. */ -}}
{{- define "pilotlight.component" -}}
{{- $component := fromYaml (.root.Files.Get (printf "components/%s/kustomization.yaml" .name)) -}}
{{- range $component.resources -}}
{{- include "pilotlight.read" (dict "root" $.root "state" $.state "glob" (printf "components/%s/%s" $.name .)) -}}
{{- end -}}
{{- range $patch := $component.patches -}}
{{- range $item := $.state.items -}}
{{- if eq (include "pilotlight.isTarget" (dict "target" $patch.target "item" $item)) "true" -}}
{{- if regexMatch "(?m)^- op:" $patch.patch -}}
{{- range fromYamlArray $patch.patch -}}
{{- $path := list -}}
{{- range rest (splitList "/" .path) }}{{ $path = append $path (replace "~1" "/" .) }}{{ end -}}
{{- include "pilotlight.operation" (dict "node" $item "path" $path "op" .op "value" .value "component" $.name) -}}
{{- end -}}
{{- else -}}
{{- include "pilotlight.merge" (dict "into" $item.spec "from" (fromYaml $patch.patch).spec) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pilotlight.isTarget" -}}
{{- $isTarget := true -}}
{{- if not (regexMatch (printf "^(%s)$" .target.kind) .item.kind) }}{{ $isTarget = false }}{{ end -}}
{{- with .target.name }}{{ if not (regexMatch (printf "^(%s)$" .) $.item.metadata.name) }}{{ $isTarget = false }}{{ end }}{{ end -}}
{{- with .target.labelSelector -}}
{{- $parts := splitList "=" . -}}
{{- $value := get $.item.metadata.labels (first $parts) -}}
{{- if or (not $value) (and (rest $parts) (ne $value (last $parts))) }}{{ $isTarget = false }}{{ end -}}
{{- end -}}
{{- $isTarget -}}
{{- end -}}

{{- /* An operation of a JSON patch (RFC 6902) below the map `node`, in place. */ -}}
{{- define "pilotlight.operation" -}}
{{- $key := first .path -}}
{{- $rest := rest .path -}}
{{- $old := get .node $key -}}
{{- if not $rest -}}
{{- if eq .op "remove" }}{{ $_ := unset .node $key -}}
{{- else if eq .op "test" }}{{ if ne $old .value }}{{ fail (printf "component %s: %s must be %v, was %v" .component $key .value $old) }}{{ end -}}
{{- else }}{{ $_ := set .node $key (deepCopy .value) }}{{ end -}}
{{- else if not (kindIs "slice" $old) -}}
{{- include "pilotlight.operation" (dict "node" $old "path" $rest "op" .op "value" .value "component" .component) -}}
{{- else if rest $rest -}}
{{- include "pilotlight.operation" (dict "node" (index $old (int (first $rest))) "path" (rest $rest) "op" .op "value" .value "component" .component) -}}
{{- else if eq (first $rest) "-" }}{{ $_ := set .node $key (append $old (deepCopy .value)) -}}
{{- else -}}
{{- $new := list -}}
{{- range $number, $each := $old -}}
{{- if ne $number (int (first $rest)) }}{{ $new = append $new $each }}{{ else }}{{ $new = append $new (deepCopy $.value) }}{{ end -}}
{{- end -}}
{{- $_ := set .node $key $new -}}
{{- end -}}
{{- end -}}

{{- /* A strategic merge in place: maps by key, lists of named entries by name, others replaced. */ -}}
{{- define "pilotlight.merge" -}}
{{- range $key, $value := .from -}}
{{- $old := get $.into $key -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $.into $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" $old) }}{{ include "pilotlight.merge" (dict "into" $old "from" $value) -}}
{{- else if and (kindIs "slice" $value) (kindIs "slice" $old) (kindIs "map" (first $value)) -}}
{{- $merged := $old -}}
{{- range $each := $value -}}
{{- $same := dict -}}
{{- range $old }}{{ if eq .name $each.name }}{{ $same = . }}{{ end }}{{ end -}}
{{- if $same }}{{ include "pilotlight.merge" (dict "into" $same "from" $each) }}{{ else }}{{ $merged = append $merged (deepCopy $each) }}{{ end -}}
{{- end -}}
{{- $_ := set $.into $key $merged -}}
{{- else }}{{ $_ := set $.into $key (deepCopy $value) }}{{ end -}}
{{- end -}}
{{- end -}}
