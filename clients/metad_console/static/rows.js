// A table of rows that may change every second: what has the focus keeps it, because rows stay where their number is.
// Values are text, whatever is in them: Vue escapes what stands in double braces.
export default {
  template: `
    <div class="table" tabindex="0" role="region" :aria-label="about">
      <table v-if="rows.length">
        <thead><tr>
          <th v-for="(name, c) in columns" :key="c" scope="col" :aria-sort="c !== by ? 'none' : down ? 'descending' : 'ascending'">
            <button type="button" @click="sort(c)">{{ name }}<span aria-hidden="true">{{ c !== by ? '' : down ? ' ↓' : ' ↑' }}</span></button>
          </th>
        </tr></thead>
        <tbody>
          <tr v-for="row in sorted" :key="row[0]">
            <td v-for="(value, c) in row[1]" :key="c" :title="value" :class="{number: typeof value === 'number'}">
              <button v-if="c === link" type="button" class="cell-link" @click="$emit('open', row[0])">{{ text(value) }}</button>
              <template v-else>{{ text(value) }}</template>
            </td>
          </tr>
        </tbody>
      </table>
      <p v-else class="empty">{{ empty }}</p>
    </div>`,
  props: { columns: Array, rows: Array, link: Number, empty: String, about: String },
  data() {
    return { by: -1, down: false };
  },
  computed: {
    sorted() {
      if (this.by < 0) return this.rows;
      const by = this.by;
      const order = (one, other) =>
        typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
      const rows = [...this.rows].sort((one, other) => order(one[1][by], other[1][by]));
      return this.down ? rows.reverse() : rows;
    },
  },
  methods: {
    sort(column) {
      this.down = this.by === column && !this.down;
      this.by = column;
    },
    text(value) {
      return typeof value === "number" ? value.toLocaleString("en") : value;
    },
  },
};
